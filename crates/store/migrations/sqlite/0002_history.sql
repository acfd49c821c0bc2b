-- Checkpoints as history: which were taken in the middle of a turn, and what was left out. NULL: nobody counted.
ALTER TABLE checkpoints ADD COLUMN mid_turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE checkpoints ADD COLUMN skipped INTEGER;
ALTER TABLE checkpoints ADD COLUMN unsettled INTEGER;
