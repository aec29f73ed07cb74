"""What a source that fetches should ask for."""
