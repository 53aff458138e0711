//! A blocking netlink socket: send a request, read its acknowledgement, its one answer or a whole dump.
//!
//! The kernel works a request off inside `send`, so the answer waits when `send` returns; nothing here needs a reactor.

use std::io;

use netlink_sys::{Socket, protocols};
use rustix::io::Errno;

use crate::wire::{self, Message, Reply};

/// `NLM_F_ACK`: answer also when all went well.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_REPLACE`.
pub(crate) const REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`: fail when it exists.
pub(crate) const EXCL: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub(crate) const APPEND: u16 = 0x800;
/// `NLM_F_ROOT | NLM_F_MATCH`: all of them.
const DUMP: u16 = 0x300;
/// The answer was changed under our reading.
const DUMP_INTERRUPTED: u16 = 0x10;
const DONE: u16 = 3;
const ERROR: u16 = 2;
/// The kernel writes at most 32 KiB of a dump at once.
const BUFFER: usize = 64 * 1024;
/// A dump that changes each time it is read is taken as it is after so many readings.
const DUMP_TRIES: usize = 8;

/// The kernel's "no", with its own words where it has any.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// Why.
    pub(crate) errno: Errno,
    /// The extended acknowledgement's text.
    pub(crate) words: Option<String>,
}

impl Refusal {
    /// A refusal without words.
    pub(crate) fn of(errno: Errno) -> Self {
        Refusal { errno, words: None }
    }

    fn from_io(error: &io::Error) -> Self {
        Refusal::of(Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// Reads `struct nlmsgerr`; `None` is the acknowledgement of a success.
    fn read(reply: Reply<'_>) -> Option<Self> {
        const CAPPED: u16 = 0x100;
        const WITH_WORDS: u16 = 0x200;
        let code = wire::u32_at(reply.body, 0)? as i32;
        if code == 0 {
            return None;
        }
        let quoted = if reply.flags & CAPPED != 0 {
            wire::HEADER
        } else {
            (wire::u32_at(reply.body, 4)? as usize).next_multiple_of(4)
        };
        let words = (reply.flags & WITH_WORDS != 0)
            .then(|| wire::attributes_after(reply.body, 4 + quoted).find(|(kind, _)| *kind == 1))
            .flatten()
            .map(|(_, value)| wire::text(value));
        Some(Refusal { errno: Errno::from_raw_os_error(-code), words })
    }
}

/// A netlink socket of the network namespace in which it was opened, whatever thread uses it later.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buf: Vec<u8>,
}

impl Netlink {
    /// Links, addresses, routes, rules, neighbours of the calling thread's namespace.
    pub(crate) fn route() -> io::Result<Self> {
        let netlink = Self::open(protocols::NETLINK_ROUTE)?;
        // Lets dumps be filtered in the kernel.
        netlink.socket.set_netlink_get_strict_chk(true)?;
        Ok(netlink)
    }

    /// nf_tables and conntrack of the calling thread's namespace.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::open(protocols::NETLINK_NETFILTER)
    }

    fn open(protocol: isize) -> io::Result<Self> {
        let socket = Socket::new(protocol)?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(Netlink { socket, sequence: 0, buf: Vec::with_capacity(BUFFER) })
    }

    fn receive(&mut self) -> Result<(), Refusal> {
        loop {
            self.buf.clear();
            match self.socket.recv(&mut self.buf, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Refusal::from_io(&error)),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        loop {
            match self.socket.send(bytes, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Refusal::from_io(&error)),
            }
        }
    }

    /// Sends a request made with [`ACK`] and waits for its acknowledgement.
    pub(crate) fn request(&mut self, message: Message) -> Result<(), Refusal> {
        self.ask(message, |_| ()).map(|_| ())
    }

    /// Sends a request and gives its one answer to `read`; `None` when it was only acknowledged.
    pub(crate) fn ask<T>(&mut self, message: Message, read: impl Fn(&[u8]) -> T) -> Result<Option<T>, Refusal> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.send(&message.finish(sequence))?;
        loop {
            self.receive()?;
            // Leftovers of a dump that was given up carry an older number.
            let answer = wire::replies(&self.buf).find(|reply| reply.sequence == sequence);
            match answer {
                None => {}
                Some(reply) if reply.kind == ERROR => return Refusal::read(reply).map_or(Ok(None), Err),
                Some(reply) => return Ok(Some(read(reply.body))),
            }
        }
    }

    /// Asks for everything that `message` selects; `read` keeps what it wants of each message.
    pub(crate) fn dump<T>(
        &mut self,
        message: &Message,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Refusal> {
        let mut found = Vec::new();
        for _ in 0..DUMP_TRIES {
            found.clear();
            if self.dump_once(message.clone(), &mut |body| found.extend(read(body)))? {
                break;
            }
        }
        Ok(found)
    }

    /// True when nothing changed under the reading.
    fn dump_once(&mut self, message: Message, keep: &mut dyn FnMut(&[u8])) -> Result<bool, Refusal> {
        self.sequence += 1;
        let sequence = self.sequence;
        let mut bytes = message.finish(sequence);
        let flags = wire::u16_at(&bytes, 6).unwrap_or_default() | DUMP;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.send(&bytes)?;
        let mut steady = true;
        loop {
            self.receive()?;
            for reply in wire::replies(&self.buf).filter(|r| r.sequence == sequence) {
                steady &= reply.flags & DUMP_INTERRUPTED == 0;
                match reply.kind {
                    DONE => {
                        let code = wire::u32_at(reply.body, 0).unwrap_or_default() as i32;
                        return match code {
                            0 => Ok(steady),
                            code => Err(Refusal::of(Errno::from_raw_os_error(-code))),
                        };
                    }
                    ERROR => return Refusal::read(reply).map_or(Ok(steady), Err),
                    _ => keep(reply.body),
                }
            }
        }
    }

    /// Sends several messages as one datagram and returns the first refusal among the answers, with the number of the
    /// message it is about (0 is the first). For nf_tables transactions: the kernel is done when `send` returns.
    pub(crate) fn transaction(&mut self, messages: Vec<Message>) -> Result<(), (usize, Refusal)> {
        const DONT_WAIT: i32 = 0x40;
        let first = self.sequence + 1;
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence += 1;
            bytes.extend_from_slice(&message.finish(self.sequence));
        }
        self.send(&bytes).map_err(|refusal| (0, refusal))?;
        let mut worst = Ok(());
        loop {
            self.buf.clear();
            match self.socket.recv(&mut self.buf, DONT_WAIT) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return worst,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err((0, Refusal::from_io(&error))),
            }
            for reply in wire::replies(&self.buf).filter(|r| r.kind == ERROR && r.sequence >= first) {
                if let (Some(refusal), Ok(())) = (Refusal::read(reply), &worst) {
                    worst = Err(((reply.sequence - first) as usize, refusal));
                }
            }
        }
    }
}
