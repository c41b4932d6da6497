"""What a user can do about a refusal, and why something waits: values with fields, put into words in one place."""
