"""What a source that fetches should ask for, what that costs, and the source itself with its parts joined."""
