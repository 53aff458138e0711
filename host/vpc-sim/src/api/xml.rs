//! XML, as much as EC2's answers need.

use std::fmt::{Display, Write};

/// A document being written.
#[derive(Debug, Default)]
pub(super) struct Xml {
    text: String,
}

impl Xml {
    /// `<name>value</name>`, escaped.
    pub(super) fn leaf(&mut self, name: &str, value: impl Display) {
        let value = value.to_string();
        // Writing to a String cannot fail.
        let _ = write!(self.text, "<{name}>{}</{name}>", quick_xml::escape::escape(value.as_str()));
    }

    /// `<name>…</name>` around what `inside` writes.
    pub(super) fn node(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        let _ = write!(self.text, "<{name}>");
        inside(self);
        let _ = write!(self.text, "</{name}>");
    }

    /// `<name><item>…</item>…</name>`: a list in EC2's manner.
    pub(super) fn items<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.node(name, |xml| items.into_iter().for_each(|item| xml.node("item", |xml| each(xml, item))));
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}
