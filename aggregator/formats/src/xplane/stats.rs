//! What is stated about planes and events: names and values. Only those that the analysis uses are kept.

use rustc_hash::FxHashMap;

use model::protobuf::read::{Damage, Message};

/// Characters of a number. Texts of events are looked at for each event, so that longer ones would take long.
const MAX_DIGITS: usize = 20;
/// Characters of details, and of the name of an operation, that are looked at.
pub(super) const MAX_DETAILS: usize = 1 << 10;

/// The names that are used. Source: openxla/xla xla/tsl/profiler/utils/xplane_schema.cc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Correlation,
    HloOp,
    HloCategory,
    /// A framework's operator, or a compiled module: who has one is work of the framework.
    Framework,
    Kernel,
    Copy,
    Fill,
    /// Allocations, which are no work of a device.
    Allocation,
    Step,
    Group,
    ProfileStart,
    ProfileStop,
    Vendor,
    DeviceType,
    ClockKhz,
    Cores,
    MemoryBytes,
    MemoryRate,
    PeakMemoryGbs,
    PeakTeraflops,
}

impl Key {
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"correlation_id" => Self::Correlation,
            b"hlo_op" => Self::HloOp,
            b"hlo_category" => Self::HloCategory,
            b"tf_op" | b"hlo_module" => Self::Framework,
            b"kernel_details" => Self::Kernel,
            b"memcpy_details" => Self::Copy,
            b"Memset_details" | b"memset_details" => Self::Fill,
            b"memalloc_details" | b"MemFree_details" | b"MemoryResidency_details" => Self::Allocation,
            b"step_num" => Self::Step,
            b"group_id" => Self::Group,
            b"profile_start_time" => Self::ProfileStart,
            b"profile_stop_time" => Self::ProfileStop,
            b"device_vendor" => Self::Vendor,
            b"device_type_string" => Self::DeviceType,
            b"clock_rate" => Self::ClockKhz,
            b"core_count" => Self::Cores,
            b"memory_size" => Self::MemoryBytes,
            b"memory_bandwidth" => Self::MemoryRate,
            b"peak_hbm_bw_gigabytes_per_second" => Self::PeakMemoryGbs,
            b"peak_teraflops_per_second" => Self::PeakTeraflops,
            _ => return None,
        })
    }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stat<'a> {
    Integer(i64),
    Double(f64),
    Text(&'a [u8]),
}

impl<'a> Stat<'a> {
    pub(super) fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(value),
            // Annotations of JAX may state numbers as texts.
            Self::Text(text) if text.len() <= MAX_DIGITS => std::str::from_utf8(text).ok()?.parse().ok(),
            Self::Text(_) => None,
            Self::Double(_) => None,
        }
    }

    pub(super) fn double(self) -> Option<f64> {
        match self {
            Self::Double(value) => Some(value),
            Self::Integer(value) => Some(value as f64),
            Self::Text(_) => None,
        }
    }

    pub(super) fn text(self) -> Option<&'a [u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The names of stats in a plane, and the texts that values refer to.
#[derive(Debug, Default)]
pub(super) struct Keys<'a> {
    by_id: FxHashMap<i64, (Option<Key>, &'a [u8])>,
}

impl<'a> Keys<'a> {
    /// Adds an entry of `stat_metadata`. Of two with one id, the last counts.
    pub(super) fn add(&mut self, entry: Message<'a>) -> Result<(), Damage> {
        let (mut id, mut name): (i64, &[u8]) = (0, &[]);
        for field in entry.fields() {
            let field = field?;
            match field.number {
                1 => id = field.integer()?,
                2 => {
                    for field in field.message()?.fields() {
                        let field = field?;
                        if field.number == 2 {
                            name = field.bytes()?;
                        }
                    }
                }
                _ => {}
            }
        }
        self.by_id.insert(id, (Key::of(name), name));
        Ok(())
    }

    /// Reads a stat; `None` if it is not used.
    pub(super) fn stat(&self, message: Message<'a>) -> Result<Option<(Key, Stat<'a>)>, Damage> {
        let (mut id, mut value) = (0, None);
        for field in message.fields() {
            let field = field?;
            match field.number {
                1 => id = field.integer()?,
                2 => value = Some(Stat::Double(field.double()?)),
                3 | 4 => value = Some(Stat::Integer(field.integer()?)),
                5 | 6 => value = Some(Stat::Text(field.bytes()?)),
                7 => value = self.by_id.get(&field.integer()?).map(|(_, name)| Stat::Text(name)),
                _ => {}
            }
        }
        let key = self.by_id.get(&id).and_then(|(key, _)| *key);
        Ok(key.zip(value))
    }
}

/// What is stated about an event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    pub(super) correlation: Option<i64>,
    pub(super) hlo_op: Option<&'a [u8]>,
    pub(super) category: Option<&'a [u8]>,
    pub(super) kernel: Option<&'a [u8]>,
    pub(super) copy: Option<&'a [u8]>,
    pub(super) fill: Option<&'a [u8]>,
    pub(super) step: Option<i64>,
    pub(super) group: Option<i64>,
    pub(super) is_allocation: bool,
    pub(super) is_framework: bool,
}

impl<'a> Facts<'a> {
    /// Adds a stat.
    pub(super) fn add(&mut self, stat: Option<(Key, Stat<'a>)>) {
        let Some((key, value)) = stat else { return };
        match key {
            // Zero is the id of nothing.
            Key::Correlation => self.correlation = value.integer().filter(|id| *id != 0),
            Key::HloOp => (self.hlo_op, self.is_framework) = (value.text(), true),
            Key::HloCategory => self.category = value.text(),
            Key::Kernel => self.kernel = value.text(),
            Key::Copy => self.copy = value.text(),
            Key::Step => self.step = value.integer(),
            Key::Group => self.group = value.integer(),
            Key::Fill => self.fill = value.text(),
            Key::Allocation => self.is_allocation = true,
            Key::Framework => self.is_framework = true,
            _ => {}
        }
    }

    /// These, and of the others what is not stated here.
    pub(super) fn or(self, others: Self) -> Self {
        Self {
            correlation: self.correlation.or(others.correlation),
            hlo_op: self.hlo_op.or(others.hlo_op),
            category: self.category.or(others.category),
            kernel: self.kernel.or(others.kernel),
            copy: self.copy.or(others.copy),
            fill: self.fill.or(others.fill),
            step: self.step.or(others.step),
            group: self.group.or(others.group),
            is_allocation: self.is_allocation || others.is_allocation,
            is_framework: self.is_framework || others.is_framework,
        }
    }
}

/// A value in details such as ` grid:4,1,1 block:256,1,1 occ_pct:50`.
pub(super) fn detail<'a>(details: &'a [u8], key: &str) -> Option<&'a str> {
    let details = &details[..details.len().min(MAX_DETAILS)];
    let mut words = std::str::from_utf8(details).ok()?.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_have_values() {
        let details = b" regs:32 static_shared:0 grid:4,2,1 block:256,1,1 occ_pct:62.5";
        assert_eq!(detail(details, "grid"), Some("4,2,1"));
        assert_eq!(detail(details, "occ_pct"), Some("62.5"));
        assert_eq!(detail(details, "shared"), None);
        assert_eq!(detail(b"\xff grid:1", "grid"), None);
        assert_eq!(Stat::Text(b"12").integer(), Some(12));
    }
}
