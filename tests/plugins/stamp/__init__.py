"""An operator for tests of builds."""
