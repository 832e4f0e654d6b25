//! Where a command writes what a person reads. Passed down, so that a test can read it and nothing prints by itself.

use std::io::{self, Write};

/// Standard output for results, standard error for progress.
pub struct Console {
    results: Box<dyn Write + Send>,
    progress: Box<dyn Write + Send>,
}

impl Console {
    /// The process's own streams.
    #[must_use]
    pub fn process() -> Self {
        Self { results: Box::new(io::stdout()), progress: Box::new(io::stderr()) }
    }

    /// Writes elsewhere, for tests.
    pub fn new(
        results: impl Write + Send + 'static,
        progress: impl Write + Send + 'static,
    ) -> Self {
        Self { results: Box::new(results), progress: Box::new(progress) }
    }

    /// Writes a line of the result and flushes it, so that a reader at a pipe sees it at once.
    ///
    /// # Errors
    /// When the stream is closed or full.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.results, "{text}")?;
        self.results.flush()
    }

    /// Writes a piece of the result without a line end and flushes it.
    ///
    /// # Errors
    /// When the stream is closed or full.
    pub fn piece(&mut self, text: &str) -> io::Result<()> {
        self.results.write_all(text.as_bytes())?;
        self.results.flush()
    }

    /// Writes a line of progress. Progress that nobody can read is dropped: it must not end the work.
    pub fn progress(&mut self, text: &str) {
        if writeln!(self.progress, "{text}").is_err() {
            tracing::debug!("standard error is closed; progress is dropped");
        }
    }
}
