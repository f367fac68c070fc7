//! Where ranks are in the machine room, by the file of `--places`: racks, switches, rails, or anything else that ranks share.
//!
//! The file is CSV, or SLURM's `topology.conf` (slurm.schedmd.com/topology.conf.html):
//!
//! ```text
//!   host,rack,power        rank,rail        SwitchName=leaf0 Nodes=node[0-3]
//!   node0,r0,a             0,0              SwitchName=leaf1 Nodes=node[4-7]
//!   node1,r0,b             1,1              SwitchName=spine Switches=leaf[0-1]
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Larger files are refused.
const MOST_BYTES: u64 = 64 << 20;
/// A list of hosts stands for at most so many.
const MOST_HOSTS: usize = 1 << 20;
/// Switches are at most so many above each other.
const MOST_HEIGHT: usize = 8;

/// For each kind of place, its name: `rack` → `r0`.
pub type OfRank = BTreeMap<String, String>;

/// The places of hosts and ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The name of the file.
    pub file: String,
    of_host: BTreeMap<String, OfRank>,
    of_rank: BTreeMap<i32, OfRank>,
}

impl Places {
    /// Reads a file. The error says what is wrong with it, in words.
    pub fn read(path: &str) -> Result<Self, String> {
        let mut text = String::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        let bytes = file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
        if bytes as u64 > MOST_BYTES {
            return Err(format!("it is larger than {} MiB", MOST_BYTES >> 20));
        }
        let is_topology = text.lines().any(|line| line.trim_start().to_ascii_lowercase().starts_with("switchname="));
        let places = if is_topology { Self::of_topology(&text)? } else { Self::of_csv(&text)? };
        let file = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { file: file.unwrap_or_default(), ..places })
    }

    /// The places of a rank: those of its host, and its own.
    pub fn of(&self, rank: i32, host: Option<&str>) -> OfRank {
        // Some schedulers write the full name of a host, and others the short one.
        let of_host = host.and_then(|host| {
            let short = host.split('.').next().unwrap_or(host);
            self.of_host.get(host).or_else(|| self.of_host.get(short))
        });
        let mut places = of_host.cloned().unwrap_or_default();
        places.extend(self.of_rank.get(&rank).cloned().unwrap_or_default());
        places
    }

    fn of_csv(text: &str) -> Result<Self, String> {
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| error.to_string())?.clone();
        let kinds: Vec<String> = header.iter().map(str::to_ascii_lowercase).collect();
        let of_ranks = match kinds.first().map(String::as_str) {
            Some("host") => false,
            Some("rank") => true,
            _ => return Err("its first column is neither host nor rank, and it has no line SwitchName=".into()),
        };
        if kinds.len() < 2 || kinds.iter().any(String::is_empty) {
            return Err("its first line names no column but the first, or an empty one".into());
        }
        let mut places = Self::default();
        for row in reader.records() {
            let row = row.map_err(|error| error.to_string())?;
            let of_row = kinds.iter().cloned().zip(row.iter().map(String::from)).skip(1);
            let of_row = of_row.filter(|(_, name)| !name.is_empty());
            if of_ranks {
                let rank = row[0].parse().map_err(|_| format!("{:?} is no rank", &row[0]))?;
                places.of_rank.entry(rank).or_default().extend(of_row);
            } else {
                places.of_host.entry(row[0].into()).or_default().extend(of_row);
            }
        }
        Ok(places)
    }

    /// The switch of each host, and the switches above that.
    fn of_topology(text: &str) -> Result<Self, String> {
        let (mut of_node, mut above) = (Vec::new(), BTreeMap::new());
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default()) {
            let mut values: BTreeMap<String, &str> = BTreeMap::new();
            for (key, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
                values.insert(key.to_ascii_lowercase(), value);
            }
            let Some(switch) = values.get("switchname") else { continue };
            for node in expanded(values.get("nodes").copied().unwrap_or_default())? {
                of_node.push((node, (*switch).to_string()));
            }
            for below in expanded(values.get("switches").copied().unwrap_or_default())? {
                above.insert(below, (*switch).to_string());
            }
        }
        let mut places = Self::default();
        for (node, leaf) in of_node {
            let chain = std::iter::successors(Some(&leaf), |switch| above.get(*switch)).take(MOST_HEIGHT);
            let kind = |height: usize| if height == 1 { "switch".into() } else { format!("switch of level {height}") };
            let of_host = (1..).zip(chain).map(|(height, switch)| (kind(height), switch.clone())).collect();
            places.of_host.insert(node, of_host);
        }
        Ok(places)
    }
}

/// The names that a list of SLURM stands for: `node[08-10],login` is node08, node09, node10, login.
fn expanded(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut depth = 0_i32;
    let is_between = |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    };
    for name in list.split(is_between).filter(|name| !name.is_empty()) {
        let mut prefixes = vec![String::new()];
        let mut rest = name;
        while let Some((before, (inside, after))) =
            rest.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once(']')?)))
        {
            let mut longer = Vec::new();
            for range in inside.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{range:?} in {name:?} is no range"));
                for number in number(first)?..=number(last)? {
                    for prefix in &prefixes {
                        longer.push(format!("{prefix}{before}{number:0width$}", width = first.len()));
                    }
                    if names.len() + longer.len() > MOST_HOSTS {
                        return Err(format!("{name:?} stands for more than {MOST_HOSTS} hosts"));
                    }
                }
            }
            (prefixes, rest) = (longer, after);
        }
        names.extend(prefixes.into_iter().map(|prefix| format!("{prefix}{rest}")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(places: &OfRank) -> Vec<String> {
        places.iter().map(|(kind, name)| format!("{kind}={name}")).collect()
    }

    #[test]
    fn a_rank_has_the_places_of_its_host_and_its_own() {
        let hosts = Places::of_csv("Host, rack, power\n# moved\nnode0, r0, a\nnode1, r1,\n").unwrap();
        assert_eq!(words(&hosts.of(3, Some("node0"))), ["power=a", "rack=r0"]);
        assert_eq!(words(&hosts.of(3, Some("node1.cluster.example"))), ["rack=r1"]);
        assert!(hosts.of(3, Some("node2")).is_empty() && hosts.of(3, None).is_empty());
        let ranks = Places::of_csv("rank,rail\n0,0\n1,1\n").unwrap();
        assert_eq!(words(&ranks.of(1, Some("node0"))), ["rail=1"]);
    }

    #[test]
    fn switches_are_read_from_topology_conf() {
        let text = "# tree\nSwitchName=leaf0 Nodes=node[08-10,12] LinkSpeed=1\nSwitchName=leaf1 Nodes=login,gpu[1-2]-[0-1]\n\
                    SwitchName=spine Switches=leaf[0-1]\nSwitchName=loop Switches=loop,spine\n";
        let places = Places::of_topology(text).unwrap();
        assert_eq!(words(&places.of(0, Some("node09")))[..2], ["switch=leaf0", "switch of level 2=spine"]);
        assert_eq!(places.of(0, Some("node12"))["switch"], "leaf0");
        assert_eq!(places.of(0, Some("gpu2-1"))["switch"], "leaf1");
        assert_eq!(places.of(0, Some("login"))["switch"], "leaf1");
        assert!(places.of(0, Some("node11")).is_empty());
    }

    #[test]
    fn other_files_are_refused() {
        let why = |text: &str| Places::of_csv(text).unwrap_err();
        assert!(why("node,rack\na,b\n").contains("neither host nor rank"));
        assert!(why("host\na\n").contains("names no column"));
        assert!(why("rank,rail\nx,0\n").contains("\"x\" is no rank"));
        assert!(why("host,rack\na,b,c\n").contains("found record with 3 fields"));
        assert!(expanded("n[0-4294967295]").unwrap_err().contains("stands for more than"));
        assert!(expanded("n[a-b]").unwrap_err().contains("is no range"));
    }
}
