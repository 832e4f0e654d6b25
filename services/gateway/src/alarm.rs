//! The alarm of a request whose events nobody takes.

use std::sync::OnceLock;

/// Rings when a worker was stopped because too many events waited. Unheard until somebody listens.
#[derive(Default)]
pub(crate) struct Alarm {
    heard: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Alarm {
    /// Who listens; the first one stays. It is called from threads of workers and must neither wait nor end what they do.
    pub(crate) fn set(&self, heard: Box<dyn Fn() + Send + Sync>) {
        let _first_stays = self.heard.set(heard);
    }

    pub(crate) fn ring(&self) {
        if let Some(heard) = self.heard.get() {
            heard();
        }
    }
}
