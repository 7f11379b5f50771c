"""Options, exit codes and what commands print."""
