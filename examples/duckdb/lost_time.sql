-- Where does the time of the steps go, and which rank, host or communicator took what is lost?
-- The rows sum to the mean step. `line` is what stands out, `variation` what ranks lose to each other while no rank stands out.
with steps as (select count(distinct step) as n from lost_time),
     hosts as (select rank, any_value(host) as host from ranks group by rank)
select t.part, l.pattern, t.rank, h.host, t.comm_id,
       round(sum(t.ns) / 1e6 / any_value(n), 3)                     as ms_per_step,
       round(100 * sum(t.ns) / sum(sum(t.ns)) over (), 1)            as percent
from lost_time t
left join (select distinct line, pattern from lost_time_lines) l using (line)
left join hosts h using (rank)
cross join steps
group by t.part, l.pattern, t.rank, h.host, t.comm_id
order by ms_per_step desc;
