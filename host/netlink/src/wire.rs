//! The shape all netlink families share: a message is a header, a fixed struct and a tree of attributes.
//!
//! Route, nf_tables and conntrack messages are all written and read with these few functions. A typed library for each
//! family would cost the plugin more bytes and more start-up than the thirty message kinds used here are worth.

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// The attribute holds attributes.
const NESTED: u16 = 1 << 15;
/// What is left of an attribute's type without the flags *nested* and *network byte order*.
const TYPE_MASK: u16 = 0x3fff;

/// One request under construction.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    buf: Vec<u8>,
}

impl Message {
    /// A request of type `kind` with `flags` (`NLM_F_*`) and the family's fixed struct.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut buf = Vec::with_capacity(512);
        buf.extend_from_slice(&0u32.to_ne_bytes());
        buf.extend_from_slice(&kind.to_ne_bytes());
        buf.extend_from_slice(&(flags | 1).to_ne_bytes()); // NLM_F_REQUEST
        buf.extend_from_slice(&[0; 8]);
        buf.extend_from_slice(fixed);
        let mut message = Message { buf };
        message.pad();
        message
    }

    fn pad(&mut self) {
        self.buf.resize(self.buf.len().next_multiple_of(4), 0);
    }

    /// Appends an attribute.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.buf.extend_from_slice(&length.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a number in the machine's byte order (route family).
    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Appends a number in network byte order (netfilter family).
    pub(crate) fn put_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Appends a string with the zero byte the kernel expects.
    pub(crate) fn put_str(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.put(kind, &bytes)
    }

    /// Appends bytes that are no attribute (a fixed struct inside a nest, as veth's peer has one).
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.buf.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends an attribute whose content `fill` writes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.buf.len();
        self.buf.extend_from_slice(&[0; 4]);
        fill(self);
        let length = u16::try_from(self.buf.len() - start).unwrap_or(u16::MAX);
        self.buf[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.buf[start + 2..start + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        self
    }

    /// The bytes to send, with their length and sequence number filled in.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.buf.len()).unwrap_or(u32::MAX);
        self.buf[0..4].copy_from_slice(&length.to_ne_bytes());
        self.buf[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.buf
    }
}

/// One message of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`.
    pub(crate) sequence: u32,
    /// All after the header.
    pub(crate) body: &'a [u8],
}

/// Splits one datagram into its messages; stops at the first that is not whole.
pub(crate) fn replies(mut data: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(data, 0)? as usize;
        if length < HEADER || length > data.len() {
            return None;
        }
        let reply = Reply {
            kind: u16_at(data, 4)?,
            flags: u16_at(data, 6)?,
            sequence: u32_at(data, 8)?,
            body: &data[HEADER..length],
        };
        data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(reply)
    })
}

/// Walks over attributes as (type without flags, value); stops at the first that is not whole.
pub(crate) fn attributes(mut data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u16_at(data, 0)? as usize;
        if length < 4 || length > data.len() {
            return None;
        }
        let attribute = (u16_at(data, 2)? & TYPE_MASK, &data[4..length]);
        data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// The attributes after a fixed struct of `fixed` bytes.
pub(crate) fn attributes_after(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(body.get(fixed..).unwrap_or_default())
}

/// The two bytes at `offset` as a number of this machine.
pub(crate) fn u16_at(data: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(offset..offset + 2)?.try_into().ok()?))
}

/// The four bytes at `offset` as a number of this machine.
pub(crate) fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(offset..offset + 4)?.try_into().ok()?))
}

/// A string up to its zero byte.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut message = Message::new(16, 4, &[7; 16]);
        message.put_str(3, "eth0").nest(18, |m| {
            m.put_u32(1, 9001);
        });
        let bytes = message.finish(42);
        let reply = replies(&bytes).next().unwrap();
        assert_eq!((reply.kind, reply.flags, reply.sequence), (16, 5, 42));
        let found: Vec<_> = attributes_after(reply.body, 16).collect();
        assert_eq!((found[0].0, text(found[0].1).as_str()), (3, "eth0"));
        assert_eq!(attributes(found[1].1).next(), Some((1, &9001u32.to_ne_bytes()[..])));
    }

    #[test]
    fn truncated_or_lying_bytes_end_the_walk() {
        let bytes = Message::new(16, 0, &[0; 16]).finish(1);
        for cut in 0..bytes.len() {
            assert_eq!(replies(&bytes[..cut]).count(), 0);
        }
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 9]).count(), 0);
        assert_eq!(replies(&[]).count(), 0);
    }
}
