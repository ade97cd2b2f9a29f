-- Tags whose numbers begin anew: what is refused. (What they issue depends on the clock: tests/behavior/period.)
\set SHOW_CONTEXT never
CREATE EXTENSION dblink;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '/nowhere');
-- (A DETAIL has the time in it.)
SELECT arguments, sqlstate, message
FROM unnest('{period => ''day'',time_zone => ''UTC'',digits => 6,
              "period => ''week'', time_zone => ''UTC''",
              "period => ''day'', time_zone => ''UTC'', digits => 11",
              "period => ''day'', time_zone => ''UTC'', digits => 0",
              "period => ''day'', time_zone => ''UTC'', digits => 100",
              "period => ''day'', time_zone => ''UTC'', digits => 3, max_step => 101",
              "period => ''day'', time_zone => ''Europe/Nowhere''",
              "server => ''elsewhere'', period => ''day'', time_zone => ''UTC''"}'::text[]) arguments,
     refusal(format('SELECT leaf_tag_create(''t'', %s)', arguments));
DROP SERVER elsewhere;
DROP EXTENSION dblink;
SELECT leaf_tag_create('day10', period => 'day', time_zone => 'UTC', digits => 10),
       leaf_tag_create('month12', period => 'month', time_zone => 'UTC', digits => 12),
       leaf_tag_create('year14', period => 'year', time_zone => 'UTC', digits => 14),
       leaf_tag_create('year1', period => 'year', time_zone => 'UTC', digits => 1),
       leaf_tag_create('year', period => 'year', time_zone => 'UTC'), leaf_tag_create('plain');
SELECT biz_tag, max_value, digits, leaf_segment_next(biz_tag) % (10 ^ digits)::bigint AS number
FROM leaf_id.leaf_alloc WHERE biz_tag IN ('day10', 'month12', 'year14', 'year1', 'year') ORDER BY biz_tag COLLATE "C";
SELECT change, r.*
FROM unnest('{period = ''month'',digits = 7,time_zone = ''Asia/Tokyo'',
              "period = NULL, time_zone = NULL, digits = NULL"}'::text[]) change,
     refusal(format('UPDATE leaf_id.leaf_alloc SET %s WHERE biz_tag = ''year''', change)) r \gx
SELECT * FROM refusal($$UPDATE leaf_id.leaf_alloc SET period = 'year', time_zone = 'UTC', digits = 7, max_value = 99, max_step = 1000
WHERE biz_tag = 'plain'$$) \gx
UPDATE leaf_id.leaf_alloc SET description = 'x' WHERE biz_tag = 'year';
SELECT leaf_segment_next('year') % 1000000 AS number;
-- Nobody has looked at the calendar yet for a tag of the open transaction.
BEGIN;
SELECT leaf_tag_create('new', period => 'year', time_zone => 'UTC');
SELECT * FROM refusal($$SELECT leaf_segment_next('new')$$) \gx
ROLLBACK;
SELECT leaf_tag_drop(biz_tag) FROM unnest('{day10,month12,year14,year1,year,plain}'::text[]) biz_tag;
