//! The screen: verdict, step times, one line a rank, and the state of the recording.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};
use trace::terminal;

use super::{extent, phase, slow_rank, verdict};
use crate::summary::step_lines;
use model::analysis::VerdictKind;
use model::stats::lower_median;
use model::units::ns;
use model::watch::{Phase, State};

/// Lines of the picture of step times.
const PICTURE: u16 = 4;
/// The most lines of messages.
const MESSAGES: usize = 3;

/// Draws a state. `messages` are the last changes, the newest last; `note` is the time of day and what a refresh cost.
pub fn draw(frame: &mut Frame<'_>, state: &State, messages: &[String], note: &str) {
    let area = frame.area();
    let alarms = alarms(state);
    let alarm_lines = wrapped_lines(&alarms, area.width).min(area.height / 3);
    let shown = &messages[messages.len().saturating_sub(MESSAGES)..];
    let rows = [
        Constraint::Length(1),
        Constraint::Length(alarm_lines),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(PICTURE),
        Constraint::Min(0),
        Constraint::Length(shown.len() as u16),
        Constraint::Length(1),
    ];
    let [head, alarm, _, title, picture, ranks, news, foot] = Layout::vertical(rows).areas(area);
    frame.render_widget(Paragraph::new(heading(state)), head);
    frame.render_widget(Paragraph::new(alarms).wrap(Wrap { trim: false }), alarm);
    steps(frame, state, title, picture);
    table(frame, state, ranks);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let news_lines: Vec<Line<'_>> = shown.iter().map(|text| Line::styled(shown_text(text), dim)).collect();
    frame.render_widget(Paragraph::new(news_lines), news);
    frame.render_widget(Paragraph::new(Line::styled(shown_text(&format!("{note} · q ends")), dim)), foot);
}

/// Text of others with its controls shown.
fn shown_text(text: &str) -> String {
    terminal::line(text).into_owned()
}

fn heading(state: &State) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let path = shown_text(&state.path.display().to_string());
    Line::from(vec![Span::styled(path, bold), Span::raw(format!(" · {} · {}", phase(state), extent(state)))])
}

/// The alarms; without one, the verdict.
fn alarms(state: &State) -> Vec<Line<'static>> {
    let bold = |color: Color| Style::new().fg(color).add_modifier(Modifier::BOLD);
    let alarm = |text: String| Line::styled(shown_text(&text), bold(Color::Red));
    let hang = state.hang.iter().map(|words| alarm(format!("HANG: {words}")));
    let mut lines: Vec<Line<'static>> = hang.chain(state.slow.iter().map(|slow| alarm(slow_rank(slow)))).collect();
    if lines.is_empty() {
        let color = match state.verdict().map(|verdict| verdict.kind) {
            Some(VerdictKind::Balanced | VerdictKind::Lost) if state.not_judged.is_none() => Color::Green,
            _ => Color::Yellow,
        };
        let text = match &state.phase {
            Phase::Waiting(_) => phase(state),
            _ => verdict(state),
        };
        lines.push(Line::styled(shown_text(&text), bold(color)));
    }
    lines
}

/// Lines that wrapped text takes at most.
fn wrapped_lines(lines: &[Line<'_>], width: u16) -> u16 {
    let width = usize::from(width.max(1));
    // A word that does not fit leaves at most half a line free.
    let of_line =
        |line: &Line<'_>| if line.width() <= width { 1 } else { line.width().div_ceil((width * 4 / 5).max(1)) };
    u16::try_from(lines.iter().map(of_line).sum::<usize>()).unwrap_or(u16::MAX)
}

fn steps(frame: &mut Frame<'_>, state: &State, title: Rect, picture: Rect) {
    let shown = &state.recent[state.recent.len().saturating_sub(usize::from(picture.width))..];
    let (Some((step, step_ns)), Some(median)) = (shown.last(), lower_median(shown.iter().map(|(_, ns)| *ns))) else {
        return frame.render_widget(Paragraph::new("no step yet"), title);
    };
    let most = shown.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
    let words =
        format!("Step {step}: {}. The last {}: median {}, longest {}", ns(*step_ns), shown.len(), ns(median), ns(most));
    frame.render_widget(Paragraph::new(words), title);
    let data: Vec<u64> = shown.iter().map(|(_, ns)| ns.unsigned_abs()).collect();
    frame.render_widget(Sparkline::default().data(data).style(Style::new().fg(Color::Blue)), picture);
}

/// One line a rank, as in the summary of `analyze`.
fn table(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some(analysis) = &state.analysis else { return };
    let lines = step_lines(analysis, usize::from(area.height), usize::from(area.width));
    let lines: Vec<Line<'_>> = lines.into_iter().map(|line| Line::raw(shown_text(&line))).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use model::analysis::RankIdentity;
    use model::watch::SlowRank;

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let messages = ["12:03:45Z step 7, 90.0 ms: new data arrives again".to_string()];
        terminal.draw(|frame| draw(frame, state, &messages, "12:03:47Z · refreshed in 21 ms")).unwrap();
        terminal.backend().to_string()
    }

    fn slow() -> State {
        let identity =
            RankIdentity { rank: 5, host: Some("node-\u{1b}[2Ja".into()), pid: Some(7419), ..Default::default() };
        let (interval_ns, location) = (Some((10_000_000, 14_000_000)), "30.0 ms longer in `forward`".into());
        let slow = SlowRank { identity, step_delay_ns: 12_000_000, interval_ns, location };
        let recent = (0..60).map(|step| (step, 90_000_000 + i64::from(step) * 1_000_000)).collect();
        State { slow: vec![slow], recent, phase: Phase::Recording, ..State::new("runs/live".as_ref()) }
    }

    #[test]
    fn a_slow_rank_is_the_first_thing_on_the_screen() {
        insta::assert_snapshot!("screen_80", drawn(&slow(), 80, 20));
    }

    #[test]
    fn every_size_can_be_drawn() {
        for (width, height) in [(1, 1), (10, 3), (20, 8), (300, 100)] {
            drawn(&slow(), width, height);
            drawn(&State::new("x".as_ref()), width, height);
        }
    }
}
