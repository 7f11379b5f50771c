"""What measured times say about the simulator's constants."""
