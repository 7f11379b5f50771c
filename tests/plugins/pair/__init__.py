"""An operator for tests of records: sizes and options of other names, two outputs."""
