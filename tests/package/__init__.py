"""What is installed: metadata, data, folders of the user."""
