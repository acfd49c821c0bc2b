-- Events by which an agent asked for leave that it still waits for, as a JSON list. NULL: none.
ALTER TABLE sessions ADD COLUMN pending TEXT;
