-- How much memory does each rank use at its peak, and what for?
select rank, device_id,
       round(peak_bytes / 1048576.0, 2) as peak_mib,
       alive
from memory_peaks
order by rank, device_id;
