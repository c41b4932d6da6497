"""The warehouse: files and Delta logs on disks and in object stores, and credentials."""
