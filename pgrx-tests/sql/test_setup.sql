-- Helper functions of the other tests. Runs right after CREATE EXTENSION.

-- A HINT is one plain sentence, or ends in statements that can be run as they are: "To do this:
-- STATEMENT; STATEMENT;". They are run here, and undone. What they find may be missing, or not
-- allowed; what they say must be understood.
CREATE FUNCTION public.check_hint(hint text) RETURNS void LANGUAGE plpgsql SET client_min_messages = error AS $$
DECLARE
    statements CONSTANT text := substring(hint FROM '^[^:]+: (.*;)$');
BEGIN
    IF statements IS NULL THEN
        IF hint !~ '^[A-Z].*\.$' OR hint ~ '\. [A-Z]|\.\.\.|SELECT|= ''' THEN
            RAISE 'neither a sentence nor a statement: %', hint;
        END IF;
    ELSIF statements ~ '^ALTER SYSTEM' THEN
        -- Not in a transaction.
        IF statements !~ '^ALTER SYSTEM SET [a-z_.]+ = ''[^;'']*''(, ''[^;'']*'')*;$' THEN
            RAISE 'no statement: %', hint;
        END IF;
    ELSE
        EXECUTE statements;
        RAISE SQLSTATE 'UNDO0';
    END IF;
EXCEPTION
    WHEN raise_exception THEN
        RAISE;
    WHEN OTHERS THEN
        -- All syntax errors, but privileges and objects that are missing, or there already.
        IF SQLSTATE ~ '^(42|3F|22)' AND SQLSTATE NOT IN ('42501', '42704', '42710', '42809') THEN
            RAISE 'a hint that cannot be run: %: %', hint, SQLERRM;
        END IF;
END $$;

-- The error of a statement, with all its fields that a client gets. In a subtransaction, so that the
-- statement leaves nothing behind. 00000 if it is not refused.
CREATE FUNCTION public.refusal(statement text)
RETURNS TABLE (sqlstate text, message text, detail text, hint text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RETURN QUERY VALUES ('00000', 'no error', '', '');
EXCEPTION WHEN OTHERS THEN
    -- Qualified: the bare name is a constant here.
    GET STACKED DIAGNOSTICS refusal.sqlstate = RETURNED_SQLSTATE, refusal.message = MESSAGE_TEXT,
        refusal.detail = PG_EXCEPTION_DETAIL, refusal.hint = PG_EXCEPTION_HINT;
    -- Some are PostgreSQL's own.
    IF refusal.hint <> '' AND refusal.hint !~ '^(No function matches|Use DROP)' THEN
        PERFORM public.check_hint(refusal.hint);
    END IF;
    RETURN NEXT;
END $$;

-- Strings in which a backslash escapes, until the transaction ends, where this version has them: not
-- since 19.
CREATE PROCEDURE public.set_escaping_strings() LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL escape_string_warning = off;
    SET LOCAL standard_conforming_strings = off;
EXCEPTION WHEN feature_not_supported OR undefined_object THEN
    NULL;
END $$;

-- The next n ids of a tag, one call each: '1 to 5' if they follow one another, as they do
-- where only one session takes them; otherwise all of them.
CREATE FUNCTION public.take(tag text, n int) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN n > 0 AND ids = ARRAY(SELECT generate_series(ids[1], ids[1] + n - 1))
        THEN ids[1] || ' to ' || ids[n] ELSE ids::text END
    FROM (SELECT array_agg(leaf_segment_next(tag)) AS ids FROM generate_series(1, n)) taken
$$;

-- Until no claim of the tag is under way: one that is takes the first ids of an edited row.
CREATE FUNCTION public.wait_for_spare(tag text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..3000 LOOP
        IF (SELECT spare_state <> 'in flight' FROM leaf_id.tags_detail s WHERE s.tag = $1) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RAISE 'the spare segment of tag "%" does not come', tag;
END $$;
-- The rate of a tag is not known at once, and falls while none is used.
CREATE FUNCTION public.wait_for_rate(tag text, below float8 DEFAULT 'Infinity') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..3000 LOOP
        IF (SELECT ids_per_second < below FROM leaf_id.tags_detail s WHERE s.tag = $1) THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RAISE 'the rate of tag "%" does not come or fall', tag;
END $$;
