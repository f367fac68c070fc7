-- What is missing from this run: rows that were dropped, ranks, files?
-- A run in which nothing was lost says so in one line.
with missing as (
    select rank, what, amount, why from omissions
    union all
    select rank, 'rows of ' || source, dropped + omitted, coalesce(why, 'not said')
    from counters where dropped + omitted > 0
)
select rank, what, amount, why from missing
union all
select null, 'nothing', 0, 'every rank recorded ' || min(recorded) || ' rows or more, and all were read'
from (select rank, sum(recorded)::bigint as recorded from counters group by rank)
having not exists (from missing)
order by rank nulls first, what;
