//! The progress of a command on stderr. It is a bar on a terminal, and otherwise a line every few
//! seconds.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use zillion_console::progress::start_bar;

/// The minimum time between two lines when stderr is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The progress of one task, shown on stderr.
pub(crate) struct Bar {
    bar: Option<ProgressBar>,
    what: String,
    unit: &'static str,
    total: u64,
    last_line: Instant,
}

impl Bar {
    /// Starts to show the progress of `total` units of work. `total` is 0 if the number is not
    /// known. `unit` is the plural name of a unit.
    pub(crate) fn new(what: &str, total: u64, unit: &'static str) -> Self {
        let template = match total {
            0 => "{prefix} {spinner} {human_pos} {msg}",
            _ => "{prefix} {bar:30} {human_pos}/{human_len} {msg}  eta {eta}",
        };
        let bar = start_bar(Some(total), template);
        if let Some(bar) = &bar {
            bar.set_prefix(what.to_owned());
            bar.set_message(unit);
        }
        Self { bar, what: what.to_owned(), unit, total, last_line: Instant::now() }
    }

    /// Shows that `done` units of work are complete.
    pub(crate) fn update(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            match self.total {
                0 => eprintln!("{}: {done} {}", self.what, self.unit),
                total => {
                    let percent = 100.0 * done as f64 / total as f64;
                    eprintln!(
                        "{}: {done} of about {total} {} ({percent:.0} %)",
                        self.what, self.unit
                    );
                }
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
