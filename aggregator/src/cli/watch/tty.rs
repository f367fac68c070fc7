//! The terminal as a screen. It is restored when the value is dropped, also by a panic.

use std::io::{BufWriter, StdoutLock, Write};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};
use trace::terminal::{self, Form, Printer};

use model::Error;

type Backend = CrosstermBackend<Printer<BufWriter<StdoutLock<'static>>>>;

/// A screen of its own beside the shell's.
pub(super) struct Screen {
    terminal: Terminal<Backend>,
}

/// An action of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    None,
    Resized,
    End,
}

impl Screen {
    pub(super) fn start() -> Result<Self, Error> {
        enable_raw_mode()?;
        // From here on, the drop of this value restores the terminal.
        let terminal = Terminal::new(CrosstermBackend::new(terminal::stdout(Form::Bytes)));
        let mut screen = match terminal {
            Ok(terminal) => Self { terminal },
            Err(error) => {
                disable_raw_mode()?;
                return Err(error.into());
            }
        };
        execute!(screen.terminal.backend_mut(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, paint: impl FnOnce(&mut Frame<'_>)) -> Result<(), Error> {
        self.terminal.draw(paint)?;
        Ok(())
    }

    /// Waits for a key or a new size.
    pub(super) fn wait(&mut self, patience: Duration) -> Result<Input, Error> {
        if !event::poll(patience)? {
            return Ok(Input::None);
        }
        Ok(match event::read()? {
            Event::Resize(..) => Input::Resized,
            Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                KeyCode::Char('q') | KeyCode::Esc => Input::End,
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Input::End,
                _ => Input::None,
            },
            _ => Input::None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, nothing needs to be restored.
        let _ = execute!(self.terminal.backend_mut(), LeaveAlternateScreen, cursor::Show);
        let _ = self.terminal.backend_mut().flush();
        let _ = disable_raw_mode();
    }
}
