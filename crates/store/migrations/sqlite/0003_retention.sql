-- Checkpoints whose files were given up by the rules stay listed. NULL: its files are there.
ALTER TABLE checkpoints ADD COLUMN removed_at INTEGER;
