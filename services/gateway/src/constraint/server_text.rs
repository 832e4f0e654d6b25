//! The text of a grammar of this server: Lark, and before it the schemas that it speaks of ([`shared::Grammar::Server`]).
//!
//! A schema is there once, however many parts of it the Lark has. Nothing grows beyond what is taken by more than the piece that is
//! written last.

use std::io::{self, Write};

use serde_json::Value;
use shared::GRAMMAR_BYTES_MAX;

use super::ConstraintError;

/// A grammar in the making.
pub(super) struct ServerText {
    lark: String,
    /// JSON of pairs: a name and a schema.
    schemas: Vec<String>,
    /// JSON of pairs: which of the schemas, and where in it.
    parts: Vec<String>,
    /// Of `schemas` and `parts`.
    head_bytes: usize,
}

impl ServerText {
    pub(super) fn new(lark: &str) -> Self {
        Self { lark: lark.to_owned(), schemas: Vec::new(), parts: Vec::new(), head_bytes: 0 }
    }

    /// Appends a rule.
    ///
    /// # Errors
    /// When the text becomes too large.
    pub(super) fn rule(&mut self, name: &str, body: &str) -> Result<(), ConstraintError> {
        for piece in [name, ": ", body, "\n"] {
            self.lark.push_str(piece);
        }
        self.fits(0)
    }

    /// Adds a schema by a name that tells its author which it is.
    ///
    /// # Errors
    /// When the text becomes too large.
    pub(super) fn document(
        &mut self,
        name: &str,
        schema: &Value,
    ) -> Result<Document, ConstraintError> {
        let mut json = Limited { text: Vec::new(), left: GRAMMAR_BYTES_MAX };
        serde_json::to_writer(&mut json, &(name, schema)).map_err(|_| too_large())?;
        let json = String::from_utf8(json.text).expect("JSON is text");
        self.head_bytes += json.len() + 1;
        self.schemas.push(json);
        self.fits(0)?;
        Ok(Document(self.schemas.len() - 1))
    }

    /// What stands in a rule for a value of the part of a schema at this JSON pointer.
    ///
    /// # Errors
    /// When the text becomes too large.
    pub(super) fn value_of(
        &mut self,
        Document(schema): Document,
        pointer: String,
    ) -> Result<String, ConstraintError> {
        let part = serde_json::to_string(&(schema, pointer)).expect("numbers and texts are JSON");
        self.head_bytes += part.len() + 1;
        self.parts.push(part);
        self.fits(0)?;
        Ok(format!("@part{}", self.parts.len() - 1))
    }

    /// Whether so many bytes more are taken.
    ///
    /// # Errors
    /// When they are not.
    pub(super) fn fits(&self, bytes: usize) -> Result<(), ConstraintError> {
        if GRAMMAR_BYTES_MAX < self.lark.len() + self.head_bytes + bytes {
            return Err(too_large());
        }
        Ok(())
    }

    /// The whole text.
    ///
    /// # Errors
    /// When it is too large.
    pub(super) fn whole(self) -> Result<String, ConstraintError> {
        let (schemas, parts) = (self.schemas.join(","), self.parts.join(","));
        let text = format!("{{\"schemas\":[{schemas}],\"parts\":[{parts}]}}\n{}", self.lark);
        if GRAMMAR_BYTES_MAX < text.len() { Err(too_large()) } else { Ok(text) }
    }
}

/// One of the schemas.
#[derive(Clone, Copy)]
pub(super) struct Document(usize);

/// JSON up to a length.
struct Limited {
    text: Vec<u8>,
    left: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self
            .left
            .checked_sub(bytes.len())
            .ok_or_else(|| io::Error::other("longer than what is taken"))?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_large() -> ConstraintError {
    ConstraintError::TooLarge { bytes_max: GRAMMAR_BYTES_MAX }
}
