-- Who has the session to itself, as JSON; it may be over. NULL: nobody.
ALTER TABLE sessions ADD COLUMN lock TEXT;
