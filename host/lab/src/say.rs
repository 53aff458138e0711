//! Questions to policies and their answers in words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wipam_core::policy::{Action, Choice, Fact, NO_ENI, RowSet, Snapshot, Verdict, row_marks};

use crate::text::{Wall, plain, span};

/// The address of a row; `None` if there is no such row.
pub fn address(rows: &RowSet, family: u8, row: u32) -> Option<IpAddr> {
    let row = row as usize;
    let (hi, lo) = (*rows.address_hi.get(row)?, *rows.address_lo.get(row)?);
    Some(match family {
        4 => IpAddr::V4(Ipv4Addr::from(lo as u32)),
        _ => IpAddr::V6(Ipv6Addr::from((u128::from(hi) << 64) | u128::from(lo))),
    })
}

/// What a row's marks and times say.
pub fn row(rows: &RowSet, row: u32, wall: &Wall) -> String {
    let at = row as usize;
    let marks = rows.marks.get(at).copied().unwrap_or(0);
    let words = [
        (row_marks::HELD_OWN, "held for this pod"),
        (row_marks::COOLING_OWN, "cooling, last its own"),
        (row_marks::RESERVED_OWN, "reserved for this pod"),
        (row_marks::RESERVED_OTHER, "reserved for another pod"),
        (row_marks::NEVER_USED, "never used"),
        (row_marks::REQUESTED, "asked for by the runtime"),
    ];
    let mut text: Vec<String> =
        words.into_iter().filter(|(bit, _)| marks & bit != 0).map(|(_, word)| word.into()).collect();
    match (rows.until_ms.get(at), rows.free_since_ms.get(at)) {
        (Some(until), _) if *until != 0 => text.push(format!("until {}", wall.utc(*until))),
        (_, Some(since)) if *since != 0 => text.push(format!("free since {}", wall.utc(*since))),
        _ => {}
    }
    if text.is_empty() { "free".into() } else { text.join(", ") }
}

/// A choice among the rows of a snapshot.
pub fn choice(choice: Choice, pool: &Snapshot, wall: &Wall) -> String {
    match choice {
        Choice::Assign(n) => match address(&pool.rows, pool.pool.family, n) {
            Some(ip) => format!("assigns {ip} ({})", row(&pool.rows, n, wall)),
            None => format!("assigns row {n}, which was not offered"),
        },
        Choice::Hold(ms) => format!("holds: nothing suits, to be asked again after {}", span(ms.into())),
        Choice::Reject => "rejects the pod".into(),
    }
}

/// An action of a plan on a snapshot.
pub fn action(action: &Action, pool: &Snapshot) -> String {
    let eni = |n: u8| match pool.enis.get(usize::from(n)) {
        Some(e) => e.id.clone(),
        None if n == NO_ENI => "the pool".into(),
        None => format!("interface {n}, which does not exist"),
    };
    let units = |length: u8, count: u16| match length {
        32 | 128 => format!("{count} addresses"),
        _ => format!("{count} prefixes of /{length}"),
    };
    match action {
        Action::Attach { length, count, .. } => format!("attach an interface with {}", units(*length, *count)),
        Action::Grow { eni: n, length, count } => format!("{} more on {}", units(*length, *count), eni(*n)),
        Action::ReleaseRows(rows) => format!("give {} addresses back", rows.len()),
        Action::ReleaseBlock(n) => format!("give block {n} back"),
        Action::Drain { eni: n, on: true } => format!("drain {}", eni(*n)),
        Action::Drain { eni: n, on: false } => format!("end the drain of {}", eni(*n)),
        Action::Detach(n) => format!("detach {}", eni(*n)),
    }
}

/// All actions of a plan.
pub fn actions(all: &[Action], pool: &Snapshot) -> String {
    match all.is_empty() {
        true => "leaves the pool as it is".into(),
        false => all.iter().map(|a| action(a, pool)).collect::<Vec<_>>().join("; "),
    }
}

/// Numbers of an answer.
pub fn facts(facts: &[Fact]) -> String {
    facts.iter().map(|f| format!("{}={}", plain(&f.key), f.value)).collect::<Vec<_>>().join(" ")
}

/// The guard's word.
pub fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accepted => "accepted".into(),
        Verdict::Partly(skipped) => {
            let all: Vec<String> = skipped
                .iter()
                .map(|s| format!("action {} refused by guard {}: {}", s.action, s.guard, s.why))
                .collect();
            all.join("; ")
        }
        Verdict::Refused { guard, why } => format!("REFUSED by guard {guard}: {why}"),
    }
}
