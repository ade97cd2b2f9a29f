-- What the other tests use. Runs after the extension is made, and before all of them.

-- How a statement is refused: all that a client is told. In a subtransaction, so that the
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
    RETURN NEXT;
END $$;
