//! Summary, JSON and report tell one story: over real traces, simulated jobs and the examples, the rank of the verdict leads its
//! table, the heat map and the proof, with the same numbers in each.

use std::fs;
use std::path::{Path, PathBuf};

use fixtures::planted::{self, Plan};
use serde_json::Value;

use crate::support::{aggregator, scratch};

/// What the three outputs say of one input.
struct Told {
    name: String,
    verdict: Value,
    /// Rows of `stragglers`, by rank.
    rows: Vec<Value>,
    summary: String,
    full: String,
    /// The text of the page, without markup and scripts.
    page: String,
    /// The data of the page.
    data: Value,
}

impl Told {
    /// `None` if the input cannot be analysed, as files of several jobs.
    fn of(input: &Path, directory: &Path) -> Option<Self> {
        let name = input.file_name().unwrap().to_string_lossy().into_owned();
        let json = aggregator(&[Path::new("analyze"), input, Path::new("--json")]);
        if json.code == Some(1) {
            return None;
        }
        let analysis: Value = serde_json::from_str(&json.stdout).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = |options: &[&str]| {
            let arguments = [Path::new("analyze"), input].into_iter().chain(options.iter().map(Path::new));
            aggregator(&arguments.collect::<Vec<_>>()).stdout
        };
        let out = directory.join(format!("{name}.html"));
        aggregator(&[Path::new("report"), input, Path::new("-o"), &out]).expect_code(0);
        let html = fs::read_to_string(out).unwrap();
        let (page, rest) = html.split_once("id=\"run-data\">").unwrap();
        let data = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
        Some(Self {
            verdict: analysis["verdict"].clone(),
            rows: analysis["tables"]["stragglers"].as_array().unwrap().clone(),
            summary: text(&[]),
            full: text(&["--full"]),
            page: visible(page),
            data,
            name,
        })
    }

    /// The row of the rank of the verdict, if ranks were compared.
    fn row(&self) -> Option<&Value> {
        let rank = self.verdict["rank"].as_i64()?;
        self.rows.iter().find(|row| row["rank"] == rank)
    }

    /// The quantity that the verdict stands on, as columns of `stragglers`: excess, z and persistence.
    fn basis(&self) -> [&'static str; 3] {
        match self.verdict["stands_on"].as_str() {
            Some("range") => ["evidence_excess_ns", "evidence_z", "evidence_persistence"],
            Some("transfers") => ["evidence_excess_ns", "z", "persistence"],
            _ => ["own_excess_ns", "z", "persistence"],
        }
    }

    fn check(&self, what: &str, is_same: bool) {
        assert!(is_same, "{}: {what}: {:#}\n{}\n{}", self.name, self.verdict, self.summary, self.full);
    }

    /// The sentence is made of the lines, and all three outputs have them.
    fn check_words(&self) {
        let summary = words(&self.summary);
        let page = words(&self.page);
        let title = self.verdict["title"].as_str().unwrap();
        self.check("the summary begins with the title", summary.starts_with(&words(title)));
        self.check("the page has the title", page.contains(&words(title)));
        for key in ["cost", "location", "action"] {
            if let Some(line) = self.verdict[key].as_str() {
                self.check(key, summary.contains(&words(line)) && page.contains(&words(line)));
            }
        }
        let sentence = words(self.verdict["sentence"].as_str().unwrap());
        self.check("--full has the sentence", words(&self.full).contains(&sentence));
        self.check("at most 24 lines", self.summary.lines().count() <= 24);
    }

    /// The row of `stragglers` has the numbers of the verdict.
    fn check_json(&self, row: &Value) {
        let verdict = &self.verdict;
        for key in [
            "step_delay_ns",
            "step_delay_low_ns",
            "step_delay_high_ns",
            "own_excess_ns",
            "reason",
            "stands_on",
            "steps",
        ] {
            self.check(key, row[key] == verdict[key]);
        }
        let [_, z, persistence] = self.basis();
        self.check("z", row[z] == verdict["z"] && row[persistence] == verdict["persistence"]);
        if !verdict["stands_on"].is_null() {
            self.check("excess", row["evidence_excess_ns"] == verdict["evidence_excess_ns"]);
            self.check("range", row["evidence_range"] == verdict["evidence_range"]);
        }
    }

    /// The rank leads the tables of the summary, with its numbers.
    fn check_summary(&self, row: &Value) {
        let rank = row["rank"].to_string();
        let stands_out = !row["stands_on"].is_null();
        let first = first_row(&self.summary, "Step, mean");
        self.check("the first row of the steps", !stands_out || first.is_none_or(|cells| cells[0] == rank));
        let Some(cells) = first_row(&self.full, "Ranks — ") else { return };
        self.check("the first row of the ranks", cells[0] == rank && cells[1] == row["verdict"].as_str().unwrap());
        self.check("the printed excess", is_printed(&cells[2], &row[self.basis()[0]]));
        self.check("the printed delay", is_printed(&cells[3], &row["step_delay_ns"]));
    }

    /// The rank leads the table of the page, with its numbers.
    fn check_page(&self, row: &Value) {
        self.check("the kind", self.data["verdict"] == self.verdict["kind"]);
        self.check("the causes", self.data["causes"] == self.verdict["causes"]);
        let table = &self.data["tables"]["stragglers"];
        self.check("the first row of the page", table["rank"][0] == row["rank"]);
        for key in ["own_excess_ns", "step_delay_ns", "evidence_excess_ns", "caused_wait_ns", "suffered_wait_ns"] {
            self.check(key, table[key][0] == row[key]);
        }
        for key in ["z", "evidence_z", "persistence"] {
            let (drawn, exact) = (table[key][0].as_f64(), row[key].as_f64());
            let is_near = drawn.zip(exact).is_none_or(|(a, b)| (a - b).abs() <= 1e-4 * b.abs());
            self.check(key, drawn.is_some() == exact.is_some() && is_near);
        }
    }

    /// The median of the rank's row in the heat map is the largest, and the excess of the verdict. Without binning, a cell
    /// is a rank in a step. Delays in some steps and transfers are no medians of rows.
    fn check_heat(&self, row: &Value) -> bool {
        let map = match self.verdict["stands_on"].as_str() {
            Some("range") => "range",
            Some("steps" | "transfers") => return false,
            _ => "own",
        };
        let heat = &self.data["heat"];
        let (rows, columns) = (heat["rows"].as_array().unwrap(), heat["columns"].as_array().unwrap());
        let is_whole = |bin: &Value| bin[0] == bin[1];
        if rows.is_empty() || !rows.iter().chain(columns).all(is_whole) {
            return false;
        }
        // The first map that the page shows is that of a range, if a verdict stands on one.
        self.check("the map", (map == "range") != heat["range_name"].is_null());
        let cells: Vec<Option<i64>> = heat[map].as_array().unwrap().iter().map(Value::as_i64).collect();
        let medians: Vec<Option<f64>> = cells.chunks(columns.len()).map(median).collect();
        let place = rows.iter().position(|bin| bin[0] == row["rank"]).unwrap();
        let most = medians.iter().flatten().copied().fold(f64::MIN, f64::max);
        // Of several causes, the first one is that with the largest cost.
        let is_alone = self.verdict["causes"].as_array().unwrap().len() < 2
            && self.verdict["suspects"].as_array().unwrap().len() < 2;
        self.check("the most extreme row", !is_alone || medians[place] == Some(most));
        let unit_ns = heat["unit_ns"].as_f64().unwrap();
        let excess_ns = row[self.basis()[0]].as_f64().unwrap();
        let drawn_ns = medians[place].unwrap() * unit_ns;
        self.check("the excess in the map", (drawn_ns - excess_ns).abs() <= unit_ns);
        true
    }
}

/// The lower median of the known values of a row.
fn median(cells: &[Option<i64>]) -> Option<f64> {
    let mut known: Vec<i64> = cells.iter().flatten().copied().collect();
    known.sort_unstable();
    let middle = |at: usize| known[at] as f64;
    match known.len() {
        0 => None,
        n if n % 2 == 1 => Some(middle(n / 2)),
        n => Some((middle(n / 2 - 1) + middle(n / 2)) / 2.0),
    }
}

/// The words of a text that may be wrapped.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text of a page without its scripts, styles and tags.
fn visible(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        text.push(' ');
        let whole = ["script", "style", "svg"].into_iter().find(|tag| after.starts_with(tag));
        rest = match whole.and_then(|tag| after.split_once(&format!("</{tag}>"))) {
            Some((_, rest)) => rest,
            None => after.split_once('>').map_or("", |(_, rest)| rest),
        };
    }
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#34;", "\""), ("&amp;", "&")];
    let named = entities.into_iter().fold(text, |text, (entity, letter)| text.replace(entity, letter));
    named.replace("&#60;", "<").replace("&#62;", ">").replace("&#38;", "&")
}

/// The cells of the first row below the line that begins so and the line of columns.
fn first_row(text: &str, heading: &str) -> Option<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(heading));
    lines.find(|line| line.trim_start().starts_with("rank "))?;
    Some(lines.next()?.split_whitespace().map(String::from).collect())
}

/// Whether a cell in ms is a number of ns, as far as its digits go.
fn is_printed(cell: &str, ns: &Value) -> bool {
    let Some(ns) = ns.as_f64() else { return cell == "–" };
    let digits = cell.split_once('.').map_or(0, |(_, digits)| digits.len() as i32);
    let text: String = cell.chars().filter(|c| !c.is_whitespace()).collect();
    text.replace('−', "-").parse::<f64>().is_ok_and(|ms| (ms - ns / 1e6).abs() <= 0.5001 * 10f64.powi(-digits))
}

fn folders(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// Invariant (output): Summary, JSON and report name the same rank first, with the same numbers.
///
/// Over planted runs of each kind of verdict, the examples, and simulated jobs.
#[test]
fn summary_json_and_report_tell_one_story() {
    let place = scratch("consistency");
    let plan = |name: &str, slow: &[(i32, i64)]| {
        let plan = Plan { ranks: 6, steps: 12, jitter_ns: 3_000, slow: slow.to_vec(), ..Plan::default() };
        planted::write(&plan, &place.join(name)).unwrap();
        place.join(name)
    };
    let mut inputs =
        vec![plan("one_slow", &[(2, 700_000)]), plan("two_slow", &[(1, 900_000), (4, 700_000)]), plan("clean", &[])];
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    inputs.extend(folders(&repository.join("examples/traces")));
    let simulated = ["ddp_balanced", "ddp_slow_host", "ddp_slow_device", "fsdp_slow_loader", "pipeline_slow_stage"];
    inputs.extend(simulated.map(|name| repository.join("fixtures/inputs").join(name)));
    tell_one_story(&place, &inputs);
}

/// Invariant (output): Summary, JSON and report name the same rank first, with the same numbers.
#[test]
#[ignore = "reads real traces"]
fn summary_json_and_report_of_real_traces_tell_one_story() {
    let data = fixtures::data::real_traces();
    tell_one_story(&scratch("consistency_real"), &[folders(&data.join("kineto")), folders(&data.join("nd"))].concat());
}

fn tell_one_story(place: &Path, inputs: &[PathBuf]) {
    let (mut told, mut with_rank, mut with_map, mut left_out) = (0, 0, 0, Vec::new());
    for input in inputs {
        let Some(outputs) = Told::of(input, place) else {
            left_out.push(input.file_name().unwrap().to_string_lossy().into_owned());
            continue;
        };
        told += 1;
        outputs.check_words();
        let Some(row) = outputs.row() else { continue };
        outputs.check_json(row);
        outputs.check_summary(row);
        outputs.check_page(row);
        with_rank += 1;
        with_map += usize::from(outputs.check_heat(row));
    }
    println!("{told} inputs, {with_rank} with a rank, {with_map} with its map; not analysed: {left_out:?}");
    assert!(left_out.iter().all(|name| ["odd", "d3_hang3"].contains(&name.as_str())), "not analysed: {left_out:?}");
    assert!(with_rank >= 5 && with_map >= 5, "{with_rank} inputs name a rank, {with_map} with its map");
}
