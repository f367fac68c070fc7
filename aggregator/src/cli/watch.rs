//! `aggregator watch`.

mod serve;
mod tty;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use rustix::process::nice;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use trace::terminal::{self, Form};

use crate::cli::output::Outcome;
use crate::cli::output::refuse_input;
use model::Error;
use model::units::ns;
use pipeline::watch::{Event, Phase, State, Watch};
use report_text::watch::metrics::{self, Format};
use report_text::watch::{lines, screen};
use serve::Served;
use tty::Screen;

/// Time from one refresh to the next.
const REFRESH: Duration = Duration::from_secs(2);
/// The pause after a refresh is at least so many times as long as the refresh: a tenth of one core at most.
const PAUSE_FACTOR: u32 = 9;
/// Time between two lines if nothing changes.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Time from a signal or a key to its effect.
const PATIENCE: Duration = Duration::from_millis(100);
/// Changes that the screen keeps.
const KEPT_MESSAGES: usize = 20;
/// The job comes first on a busy machine.
const NICENESS: i32 = 19;

/// Watch a run while ranks write it: step time, the verdict on the newest steps, slow ranks, hangs, losses.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Run. If it does not exist yet, the command waits for it. `rankscope watch` also takes the process id of an `exec`, as
    /// `ctl --pid` does.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print a line for each change and one a minute, instead of a screen.
    #[arg(long)]
    plain: bool,
    /// Serve metrics at http://127.0.0.1:PORT/metrics, or at IP:PORT; or write them to a file at each refresh, for the
    /// textfile collector of node_exporter.
    #[arg(long, value_name = "PORT|FILE", value_parser = Metrics::parse)]
    metrics: Option<Metrics>,
}

const AFTER_HELP: &str = "\
The command ends when the run has ended. q or Ctrl-C ends it earlier, and the job goes on. Without a terminal and \
without --plain it prints only how the run ended.";

impl Arguments {
    /// The run, which the `rankscope` command may also find by the process that records it.
    pub fn run_mut(&mut self) -> &mut PathBuf {
        &mut self.run
    }
}

/// The place of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Metrics {
    Address(SocketAddr),
    File(PathBuf),
}

impl Metrics {
    fn parse(text: &str) -> Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port: u16 = text.parse().map_err(|_| "a port is a number below 65536".to_string())?;
            return Ok(Self::Address(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) if text.is_empty() => Err("expected a port, an IP address with a port, or a file".into()),
            Err(_) => Ok(Self::File(text.into())),
        }
    }
}

/// Runs the command.
pub(super) fn run(arguments: &Arguments) -> Result<Outcome, Error> {
    if let Some(Metrics::File(path)) = &arguments.metrics
        && arguments.run.exists()
    {
        refuse_input(path, std::slice::from_ref(&arguments.run))?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    // If the system refuses it, the command has the usual priority.
    let _ = nice(NICENESS);
    let mut outputs = Outputs::start(arguments)?;
    let mut watch = Watch::new(&arguments.run);
    let began = Instant::now();
    loop {
        let refresh = Instant::now();
        let events = watch.refresh(began.elapsed())?;
        watch.forget();
        let cost = refresh.elapsed();
        outputs.show(watch.state(), &events, cost)?;
        if matches!(watch.state().phase, Phase::Ended { .. }) {
            break;
        }
        if outputs.pause(watch.state(), REFRESH.saturating_sub(cost).max(cost * PAUSE_FACTOR), &stop)? {
            break;
        }
    }
    outputs.end(watch.state())?;
    Ok(Outcome::Done)
}

/// The screen or the lines, and the metrics.
struct Outputs {
    screen: Option<Screen>,
    plain: bool,
    messages: Vec<String>,
    note: String,
    last_line: Option<Instant>,
    metrics: Option<MetricsOutput>,
    /// The newest step, and when it was seen.
    step: Option<(i32, f64)>,
}

enum MetricsOutput {
    Served(Served),
    /// A file, and the error of the last attempt to write it.
    File(PathBuf, Option<Error>),
}

impl Outputs {
    fn start(arguments: &Arguments) -> Result<Self, Error> {
        let metrics = match &arguments.metrics {
            None => None,
            Some(Metrics::File(path)) => Some(MetricsOutput::File(path.clone(), None)),
            Some(Metrics::Address(address)) => Some(MetricsOutput::Served(Served::start(*address)?)),
        };
        let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let screen = if has_terminal && !arguments.plain { Some(Screen::start()?) } else { None };
        let (plain, messages, note) = (arguments.plain, Vec::new(), String::new());
        Ok(Self { screen, plain, messages, note, last_line: None, metrics, step: None })
    }

    fn show(&mut self, state: &State, events: &[Event], cost: Duration) -> Result<(), Error> {
        if state.step.is_some() && state.step != self.step.map(|(step, _)| step) {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.step = state.step.map(|step| (step, since.as_secs_f64()));
        }
        // A reader of the lines finds metrics that are as new.
        self.publish(state);
        let time = time_of_day();
        let lines: Vec<String> = events.iter().flat_map(|event| lines::event(&time, state, event)).collect();
        if self.plain {
            let is_due = self.last_line.is_none_or(|last| last.elapsed() >= HEARTBEAT);
            let heartbeat = (lines.is_empty() && is_due).then(|| lines::heartbeat(&time, state));
            self.print(lines.iter().chain(&heartbeat))?;
        }
        self.messages.extend(lines);
        let surplus = self.messages.len().saturating_sub(KEPT_MESSAGES);
        self.messages.drain(..surplus);
        self.note = format!("{time} · refreshed in {}", ns(i64::try_from(cost.as_nanos()).unwrap_or(i64::MAX)));
        self.draw(state)
    }

    fn print<'a>(&mut self, lines: impl Iterator<Item = &'a String>) -> Result<(), Error> {
        let mut out = terminal::stdout(Form::Text);
        for line in lines {
            writeln!(out, "{line}")?;
            self.last_line = Some(Instant::now());
        }
        Ok(out.flush()?)
    }

    fn draw(&mut self, state: &State) -> Result<(), Error> {
        let Some(screen) = &mut self.screen else { return Ok(()) };
        let (messages, note) = (&self.messages, &self.note);
        screen.draw(|frame| screen::draw(frame, state, messages, note))
    }

    /// Publishes the metrics. If a file cannot be written, the watch goes on and says so once; if the last one cannot, the
    /// command fails.
    fn publish(&mut self, state: &State) {
        let text = |format| metrics::render(state, self.step.map(|(_, time_s)| time_s), format);
        match &mut self.metrics {
            None => {}
            Some(MetricsOutput::Served(served)) => served.set(text(Format::OpenMetrics), text(Format::Text)),
            Some(MetricsOutput::File(path, failed)) => {
                let result = write(path, &text(Format::Text));
                if let (Err(error), None) = (&result, &failed) {
                    let words = format!("the metrics could not be written: {error}");
                    if self.screen.is_none() {
                        terminal::say(&words);
                    }
                    self.messages.push(words);
                }
                *failed = result.err();
            }
        }
    }

    /// Waits. Returns whether a signal or a key ends the watch.
    fn pause(&mut self, state: &State, pause: Duration, stop: &AtomicBool) -> Result<bool, Error> {
        let end = Instant::now() + pause;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
            match &mut self.screen {
                None => std::thread::sleep(left.min(PATIENCE)),
                Some(screen) => match screen.wait(left.min(PATIENCE))? {
                    tty::Input::End => return Ok(true),
                    tty::Input::Resized => self.draw(state)?,
                    tty::Input::None => {}
                },
            }
        }
    }

    /// Restores the terminal, and leaves a last line in it.
    fn end(mut self, state: &State) -> Result<(), Error> {
        let had_screen = self.screen.take().is_some();
        let has_ended = matches!(state.phase, Phase::Ended { .. });
        let line = match has_ended {
            // `--plain` has printed the event.
            true if self.plain => Vec::new(),
            true => lines::event(&time_of_day(), state, &Event::Ended),
            false if had_screen || self.plain => vec![lines::stopped(&time_of_day(), state)],
            false => Vec::new(),
        };
        self.print(line.iter())?;
        match self.metrics {
            Some(MetricsOutput::File(_, Some(error))) => Err(error),
            _ => Ok(()),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    trace::files::replace(path, |file| {
        file.write_all(text.as_bytes()).map_err(|source| Error::Io { path: path.into(), source })
    })
    .map(drop)
}

/// UTC, as in `12:03:45Z`.
fn time_of_day() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_port_of_the_loopback_and_a_name_is_a_file() {
        let address = |text: &str| Ok(Metrics::Address(text.parse().unwrap()));
        assert_eq!(Metrics::parse("9464"), address("127.0.0.1:9464"));
        assert_eq!(Metrics::parse("0.0.0.0:9464"), address("0.0.0.0:9464"));
        assert_eq!(Metrics::parse("[::1]:9464"), address("[::1]:9464"));
        assert_eq!(Metrics::parse("run.prom"), Ok(Metrics::File("run.prom".into())));
        assert_eq!(Metrics::parse("./9464"), Ok(Metrics::File("./9464".into())));
        assert!(Metrics::parse("99999").is_err() && Metrics::parse("").is_err());
    }
}
