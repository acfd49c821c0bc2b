-- The files of a shared workspace went back to the checkpoint of this number.
ALTER TABLE checkpoints ADD COLUMN back INTEGER;
-- Turns of other sessions that were under way in the workspace, as JSON; NULL: none.
ALTER TABLE checkpoints ADD COLUMN beside TEXT;
