"""What the runtime knows of the loaded model and of the machine."""
