//! What the user counts as communication: `--comm` and `--not-comm`.

use std::fmt;

use regex::Regex;
use trace::name_rules::is_communication_by_hta;

use crate::{Kind, RankData};

/// The kernels that `--comm` counts as communication.
#[derive(Clone, Debug)]
pub enum Counted {
    /// Those of HTA's narrower definition, and no others.
    Hta,
    /// Those whose name matches, in addition to those that communicate by the rules.
    Matching(Regex),
}

/// What the user counts as communication. The default leaves it to the rules.
#[derive(Clone, Debug, Default)]
pub struct Communication {
    /// `--comm`.
    pub counted: Option<Counted>,
    /// `--not-comm`: device work whose name matches is no communication. Stronger than `counted`.
    pub not_counted: Option<Regex>,
}

impl Communication {
    /// Whether the rules decide alone.
    pub fn is_default(&self) -> bool {
        self.counted.is_none() && self.not_counted.is_none()
    }

    /// Decides again which device rows of a rank communicate. Rows of the host stay as they are.
    pub fn decide(&self, data: &mut RankData) {
        if self.is_default() {
            return;
        }
        let matches = |regex: &Regex| data.names.iter().map(|name| regex.is_match(name)).collect::<Vec<_>>();
        let counted: Option<Vec<bool>> = self.counted.as_ref().map(|counted| match counted {
            Counted::Hta => data.names.iter().map(|name| is_communication_by_hta(name)).collect(),
            Counted::Matching(regex) => matches(regex),
        });
        let by_hta_only = matches!(self.counted, Some(Counted::Hta));
        let not_counted = self.not_counted.as_ref().map(matches);
        let events = &mut data.events;
        for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
            let name = events.name[row] as usize;
            let is_comm = &mut events.is_comm[row];
            if let Some(counted) = &counted {
                *is_comm = match by_hta_only {
                    true => events.kind[row] == Kind::Kernel && counted[name],
                    false => *is_comm || counted[name],
                };
            }
            *is_comm = *is_comm && !not_counted.as_ref().is_some_and(|not_counted| not_counted[name]);
        }
    }
}

/// As on the command line.
impl fmt::Display for Communication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.counted.as_ref().map(|counted| match counted {
            Counted::Hta => "--comm hta".to_string(),
            Counted::Matching(regex) => format!("--comm {regex}"),
        });
        let not_counted = self.not_counted.as_ref().map(|regex| format!("--not-comm {regex}"));
        let words: Vec<String> = counted.into_iter().chain(not_counted).collect();
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    fn regex(text: &str) -> Regex {
        Regex::new(text).unwrap()
    }

    /// Names of the device rows that communicate.
    fn communicating(rule: &Communication) -> Vec<String> {
        let mut data = Drawn::rank(0)
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 1), 0, "#.......")
            .device(Kind::Kernel, "void deep_ep::intranode::combine<2>()", (0, 1), 1, ".#......")
            .device(Kind::Kernel, "my_exchange", (0, 1), 2, "..#.....")
            .device(Kind::GpuMemcpy, "Memcpy PtoP", (0, 1), 3, "...#....")
            .host(Kind::CpuOp, "c10d::allreduce_", 1, "....#...")
            .host(Kind::CpuOp, "my_exchange_op", 1, "......#.")
            .data();
        rule.decide(&mut data);
        let rows = (0..data.events.len()).filter(|row| data.events.is_comm[*row]);
        rows.map(|row| data.names[data.events.name[row] as usize].to_string()).collect()
    }

    #[test]
    fn comm_adds_not_comm_removes_and_hta_replaces() {
        let (nccl, deep_ep) = ("ncclDevKernel_AllReduce", "void deep_ep::intranode::combine<2>()");
        let host = "c10d::allreduce_";
        let mut rule = Communication::default();
        assert_eq!(communicating(&rule), [nccl, deep_ep, host]);
        rule.counted = Some(Counted::Matching(regex("exchange|PtoP")));
        assert_eq!(communicating(&rule), [nccl, deep_ep, "my_exchange", "Memcpy PtoP", host]);
        rule.not_counted = Some(regex("^nccl|exchange|c10d"));
        assert_eq!(communicating(&rule), [deep_ep, "Memcpy PtoP", host]);
        assert_eq!(rule.to_string(), "--comm exchange|PtoP --not-comm ^nccl|exchange|c10d");
        rule.counted = Some(Counted::Hta);
        assert_eq!(communicating(&rule), [host]);
        rule.not_counted = None;
        assert_eq!(communicating(&rule), [nccl, host]);
        assert_eq!(rule.to_string(), "--comm hta");
    }
}
