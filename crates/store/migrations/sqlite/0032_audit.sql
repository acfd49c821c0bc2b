-- Lines have a number of their own for each tenant: one for all would tell every tenant how much the others do.
ALTER TABLE audit ADD COLUMN id INTEGER;
DROP TRIGGER audit_is_not_changed;
UPDATE audit SET id = numbered.id
    FROM (SELECT n, row_number() OVER (PARTITION BY tenant ORDER BY n) AS id FROM audit) AS numbered
    WHERE numbered.n = audit.n;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
-- Pages of a tenant's, newest first.
DROP INDEX audit_by_tenant;
CREATE UNIQUE INDEX audit_by_id ON audit (tenant, id);
DROP INDEX audit_by_subject;
CREATE INDEX audit_by_subject ON audit (tenant, subject, id);
