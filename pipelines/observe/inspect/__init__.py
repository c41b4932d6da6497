"""The state of a pipeline, running or not, for sensors and pages: status, overview, unread commits."""
