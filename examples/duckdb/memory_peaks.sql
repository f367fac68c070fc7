-- How much memory does each rank use at its peak, and what for?
-- Current directory: a run, analysed.
select rank, device_id,
       round(peak_bytes / 1048576.0, 2) as peak_mib,
       alive
from 'analysis/memory_peaks.parquet'
order by rank, device_id;
