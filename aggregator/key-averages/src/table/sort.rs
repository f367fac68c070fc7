//! Sort keys of the table: the attributes that torch accepts.

use std::cmp::Ordering;

use crate::table::average::Average;

/// A key that torch.profiler's `table(sort_by=…)` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// Mean length on the host.
    CpuTime,
    /// `cpu_time_total`.
    CpuTimeTotal,
    /// `self_cpu_time_total`.
    SelfCpuTimeTotal,
    /// Mean time on the device.
    DeviceTime,
    /// `device_time_total`.
    DeviceTimeTotal,
    /// `self_device_time_total`.
    SelfDeviceTimeTotal,
    /// `cpu_memory_usage`.
    CpuMemoryUsage,
    /// `self_cpu_memory_usage`.
    SelfCpuMemoryUsage,
    /// `device_memory_usage`.
    DeviceMemoryUsage,
    /// `self_device_memory_usage`.
    SelfDeviceMemoryUsage,
    /// Calls.
    Count,
    /// FLOPs.
    Flops,
    /// Name, from Z to A, because torch sorts in descending order.
    Key,
}

/// The keys as the user writes them, with `device` for any device.
const KEYS: [(&str, SortKey); 13] = [
    ("cpu_time", SortKey::CpuTime),
    ("cpu_time_total", SortKey::CpuTimeTotal),
    ("self_cpu_time_total", SortKey::SelfCpuTimeTotal),
    ("device_time", SortKey::DeviceTime),
    ("device_time_total", SortKey::DeviceTimeTotal),
    ("self_device_time_total", SortKey::SelfDeviceTimeTotal),
    ("cpu_memory_usage", SortKey::CpuMemoryUsage),
    ("self_cpu_memory_usage", SortKey::SelfCpuMemoryUsage),
    ("device_memory_usage", SortKey::DeviceMemoryUsage),
    ("self_device_memory_usage", SortKey::SelfDeviceMemoryUsage),
    ("count", SortKey::Count),
    ("flops", SortKey::Flops),
    ("key", SortKey::Key),
];

impl SortKey {
    /// Parses a key. `cuda`, `xpu` and `privateuse1` are torch's older words for `device`.
    ///
    /// # Errors
    /// A sentence that lists the accepted keys.
    pub fn parse(text: &str) -> Result<Self, String> {
        let device = text.replace("cuda", "device").replace("xpu", "device").replace("privateuse1", "device");
        let key = KEYS.iter().find(|(key, _)| *key == device);
        key.map(|(_, key)| *key).ok_or_else(|| {
            let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
            format!("unknown sort key; use one of {} (cuda, xpu and privateuse1 also mean device)", keys.join(", "))
        })
    }

    /// Sorts in descending order. Equal rows keep their order.
    pub fn sort(self, rows: &mut [Average]) {
        rows.sort_by(|a, b| self.compare(b, a));
    }

    fn compare(self, a: &Average, b: &Average) -> Ordering {
        if self == Self::Key {
            return a.name.cmp(&b.name);
        }
        self.number(a).total_cmp(&self.number(b))
    }

    /// The value of a row. Unknown values count as 0, as in torch.
    fn number(self, row: &Average) -> f64 {
        let mean = |total: i64| total as f64 / row.calls as f64;
        let bytes = |bytes: Option<i64>| bytes.unwrap_or(0) as f64;
        match self {
            Self::CpuTime => mean(row.cpu_time_total_ns),
            Self::CpuTimeTotal => row.cpu_time_total_ns as f64,
            Self::SelfCpuTimeTotal => row.self_cpu_time_total_ns as f64,
            Self::DeviceTime => mean(row.device_time_total_ns),
            Self::DeviceTimeTotal => row.device_time_total_ns as f64,
            Self::SelfDeviceTimeTotal => row.self_device_time_total_ns as f64,
            Self::CpuMemoryUsage => bytes(row.cpu_memory_usage_bytes),
            Self::SelfCpuMemoryUsage => bytes(row.self_cpu_memory_usage_bytes),
            Self::DeviceMemoryUsage => bytes(row.device_memory_usage_bytes),
            Self::SelfDeviceMemoryUsage => bytes(row.self_device_memory_usage_bytes),
            Self::Count => row.calls as f64,
            Self::Flops => bytes(row.flops),
            Self::Key => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_words_are_the_same_key() {
        for text in
            ["self_cuda_time_total", "self_device_time_total", "self_xpu_time_total", "self_privateuse1_time_total"]
        {
            assert_eq!(SortKey::parse(text), Ok(SortKey::SelfDeviceTimeTotal), "{text}");
        }
        assert_eq!(SortKey::parse("cuda_memory_usage"), Ok(SortKey::DeviceMemoryUsage));
        let error = SortKey::parse("time").unwrap_err();
        for (key, _) in KEYS {
            assert!(error.contains(key), "{error} lacks {key}");
        }
    }

    #[test]
    fn the_largest_row_is_first_and_equal_rows_keep_their_order() {
        let row = |name: &str, calls| Average { name: name.into(), calls, ..Average::default() };
        let mut rows = vec![row("a", 1), row("b", 3), row("c", 1)];
        SortKey::Count.sort(&mut rows);
        let names = |rows: &[Average]| rows.iter().map(|r| r.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&rows), ["b", "a", "c"]);
        SortKey::Key.sort(&mut rows);
        assert_eq!(names(&rows), ["c", "b", "a"]);
    }
}
