-- In which order do the ranks arrive at the collectives?
-- 1 is first. Over the collectives that all their ranks recorded. A rank that is last at most of them is late, not necessarily to
-- blame: see stragglers.sql.
with arrivals as (
    select w.rank, w.wait_ns, i.step, i.error_ns,
           w.arrival_ns - i.first_start_ns as late_ns,
           rank() over (partition by w.instance order by w.arrival_ns) as place,
           count(*) over (partition by w.instance)                     as ranks
    from collective_waits w
    join collective_instances i using (instance)
    where i.complete
)
select rank,
       count(*)                                as collectives,
       round(avg(place), 2)                    as mean_place,
       count(*) filter (place = 1)             as times_first,
       count(*) filter (place = ranks)         as times_last,
       round(median(late_ns) / 1e6, 3)         as median_late_ms,
       round(sum(wait_ns) / 1e6, 3)            as waited_ms,
       round(max(error_ns) / 1e3, 3)           as clock_error_us
from arrivals
group by rank
order by mean_place;
