//! Built-in snapshots on which a candidate must answer sensibly before it is let near a pod.
//!
//! They are small worlds at the corners: nothing there yet, lone addresses with rows of every mark, prefixes, a range,
//! a large pool, a node that stops. They show no policy's opinion; what is asked is only that the answer has the right
//! shape, fits the caps, and is the same the second time.

use wipam_core::{
    ids::pod_key,
    policy::{
        Action, AllocDecision, AllocateCall, Barrier, BlockSet, Choice, CloudView, Counts, Demand, EndedLease, EniView,
        Given, Limits, Memo, NO_BLOCK, NO_ENI, OutcomeView, PlanCall, PlanDecision, Pod, PoolInfo, ReleaseCall,
        Request, RowSet, Snapshot, SubnetView, eni_marks, row_marks,
    },
};

use crate::fault::{Fault, FaultClass};

/// One built-in situation, for all three functions.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name, for messages.
    pub name: &'static str,
    /// Question to an allocator.
    pub allocate: AllocateCall,
    /// Second question to an allocator.
    pub release: ReleaseCall,
    /// Question to a sizer.
    pub plan: PlanCall,
}

/// Pool clock of all of them.
const NOW: u64 = 1_800_000_000_000;

/// All built-in situations.
pub fn all() -> Vec<Golden> {
    vec![
        golden("empty", empty(), Demand { waiting: 1, schedulable: true, ..Demand::default() }),
        golden("lone-addresses", lone(3, 5, 2), busy()),
        golden("full", lone(3, 5, 5), busy()),
        golden("prefixes", prefixes(), busy()),
        golden("range", range(), busy()),
        golden("large", lone(15, 49, 0), Demand { schedulable: true, ..Demand::default() }),
        golden("stopping", lone(2, 5, 1), Demand { stopping: true, ..Demand::default() }),
    ]
}

fn busy() -> Demand {
    Demand {
        waiting: 1,
        oldest_wait_ms: 250,
        adds_10s: 3,
        adds_1m: 9,
        dels_1m: 2,
        failed_1m: 1,
        pending_pods: Some(4),
        schedulable: true,
        stopping: false,
    }
}

fn golden(name: &'static str, pool: Snapshot, demand: Demand) -> Golden {
    let given = Given { now_ms: NOW, seed: 7, ..Given::default() };
    let pod = Pod {
        namespace: "default".into(),
        name: "web-0".into(),
        uid: "5d9d8f1e-6a4b-4c7e-9a53-1a2b3c4d5e6f".into(),
        key: pod_key("default", "web-0"),
        facts_known: true,
        owner_kind: "StatefulSet".into(),
        owner_name: "web".into(),
        labels: vec![("app".into(), "web".into())],
        annotations: vec![],
    };
    let request = Request {
        sandbox: 11,
        ifname: "eth0".into(),
        index: 0,
        pod: pod.clone(),
        attempt: 0,
        deadline_ms: NOW + 100_000,
    };
    let lease = EndedLease {
        sandbox: 11,
        ifname: "eth0".into(),
        index: 0,
        pod,
        address_hi: 0,
        address_lo: 0x0a00_0005,
        assigned_at_ms: NOW - 3_600_000,
        cause: "del".into(),
    };
    let (info, limits, counts) = (pool.pool.clone(), pool.limits.clone(), pool.counts);
    Golden {
        name,
        allocate: AllocateCall { request, given: given.clone(), pool: pool.clone() },
        release: ReleaseCall { lease, given: given.clone(), pool: info, limits, counts },
        plan: PlanCall { given, pool, demand, cloud: cloud(), memo: Memo::default() },
    }
}

fn cloud() -> CloudView {
    let outcome = |code: &str| OutcomeView {
        op: "grow".into(),
        eni: 0,
        asked: 3,
        applied: u32::from(code.is_empty()) * 3,
        code: code.into(),
        at_ms: NOW - 5_000,
    };
    CloudView {
        subnets: vec![SubnetView { id: "subnet-0a".into(), free: Some(4000), ..SubnetView::default() }],
        barriers: vec![Barrier { op: "attach".into(), subnet: 255, code: "throttled".into(), until_ms: NOW + 2_000 }],
        in_flight: vec![],
        last: vec![outcome(""), outcome("guard-10")],
    }
}

fn info(kind: &str, unit_length: u8) -> PoolInfo {
    PoolInfo {
        network: "vpc".into(),
        kind: kind.into(),
        family: 4,
        card: 0,
        unit_length,
        may_grow: true,
        cooldown_ms: 30_000,
    }
}

fn limits(max_enis: u16, slots_per_eni: u16) -> Limits {
    Limits {
        instance_type: "m5.large".into(),
        max_enis,
        slots_per_eni,
        max_pods: u32::from(max_enis) * u32::from(slots_per_eni) + 2,
    }
}

fn snapshot(pool: PoolInfo, limits: Limits) -> Snapshot {
    Snapshot {
        pool,
        limits,
        counts: Counts::default(),
        enis: vec![],
        blocks: BlockSet::default(),
        rows: RowSet::default(),
        rows_left_out: 0,
    }
}

fn empty() -> Snapshot {
    let mut pool = snapshot(info("eni", 32), limits(3, 5));
    pool.enis.push(eni(0, 5, 0));
    pool
}

fn eni(n: u8, slots: u16, used: u16) -> EniView {
    EniView {
        id: format!("eni-{n:017x}"),
        device_index: n,
        marks: if n == 0 { eni_marks::PRIMARY } else { 0 },
        slots,
        slots_used: used,
        attached_at_ms: NOW - 86_400_000,
        ..EniView::default()
    }
}

fn push(rows: &mut RowSet, address: u64, eni: u8, block: u16, marks: u16, free_since_ms: u64) {
    rows.address_hi.push(0);
    rows.address_lo.push(address);
    rows.eni.push(eni);
    rows.block.push(block);
    rows.marks.push(marks);
    rows.free_since_ms.push(free_since_ms);
    let ends = row_marks::COOLING_OWN | row_marks::HELD_OWN | row_marks::RESERVED_OWN | row_marks::RESERVED_OTHER;
    rows.until_ms.push(if marks & ends == 0 { 0 } else { NOW + 60_000 });
    let own = ends & !row_marks::RESERVED_OTHER;
    rows.last_pod_key.push(match marks {
        m if m & own != 0 => pod_key("default", "web-0"),
        m if m & row_marks::NEVER_USED != 0 => 0,
        _ => address,
    });
}

/// `enis` interfaces with all slots filled, `taken` of each leased and the rest offered; on a small pool the first
/// four rows carry the marks of an asker that was there before.
fn lone(enis: u8, slots: u16, taken: u16) -> Snapshot {
    let mut pool = snapshot(info("eni", 32), limits(u16::from(enis), slots));
    let marks = [row_marks::HELD_OWN, row_marks::COOLING_OWN, row_marks::RESERVED_OWN, row_marks::RESERVED_OTHER];
    for n in 0..enis {
        let mut view = eni(n, slots, slots);
        view.assigned = u32::from(taken);
        for slot in taken..slots {
            let row = pool.rows.len();
            let mark = match marks.get(row) {
                Some(mark) if taken > 0 => *mark,
                _ if slot % 2 == 0 => row_marks::NEVER_USED,
                _ => 0,
            };
            match mark {
                row_marks::HELD_OWN => view.held += 1,
                row_marks::COOLING_OWN => view.cooling += 1,
                row_marks::RESERVED_OWN | row_marks::RESERVED_OTHER => view.reserved += 1,
                _ => view.free += 1,
            }
            let since = if mark == row_marks::NEVER_USED { 0 } else { NOW - 1_000 * (row as u64 + 1) };
            let address = 0x0a00_0000 + u64::from(n) * 256 + u64::from(slot) + 4;
            push(&mut pool.rows, address, n, NO_BLOCK, mark, since);
        }
        pool.enis.push(view);
    }
    count(&mut pool);
    pool
}

/// Sums of the interfaces.
fn count(pool: &mut Snapshot) {
    let sum = |of: fn(&EniView) -> u32| pool.enis.iter().map(|e| u64::from(of(e))).sum::<u64>();
    let counts = Counts {
        assigned: sum(|e| e.assigned),
        free: sum(|e| e.free),
        cooling: sum(|e| e.cooling),
        reserved: sum(|e| e.reserved),
        held: sum(|e| e.held),
        ..Counts::default()
    };
    pool.counts =
        Counts { total: counts.assigned + counts.free + counts.cooling + counts.reserved + counts.held, ..counts };
}

/// Two interfaces with three /28 between them: one busy, one nearly idle, one untouched.
fn prefixes() -> Snapshot {
    let mut pool = snapshot(info("eni", 28), limits(3, 9));
    for (n, used) in [(0, 2), (1, 1)] {
        pool.enis.push(eni(n, 9, used));
    }
    let blocks = &mut pool.blocks;
    for (n, (eni, assigned)) in [(0_u8, 12_u32), (0, 1), (1, 0)].into_iter().enumerate() {
        let base = 0x0a00_1000 + 16 * n as u64;
        blocks.eni.push(eni);
        blocks.length.push(28);
        blocks.base_hi.push(0);
        blocks.base_lo.push(base);
        blocks.assigned.push(assigned);
        for column in [&mut blocks.cooling, &mut blocks.reserved, &mut blocks.held] {
            column.push(0);
        }
        blocks.untouched.push(16 - u64::from(assigned));
        blocks.marks.push(0);
        for address in base + u64::from(assigned)..base + 16 {
            push(&mut pool.rows, address, eni, n as u16, row_marks::NEVER_USED, 0);
        }
        let view = &mut pool.enis[usize::from(eni)];
        view.assigned += assigned;
        view.free += 16 - assigned;
    }
    count(&mut pool);
    pool
}

/// A range of a secondary network: no interfaces, most addresses not among the rows.
fn range() -> Snapshot {
    let mut pool = snapshot(info("range", 24), limits(0, 0));
    pool.pool.may_grow = false;
    pool.limits.max_pods = 110;
    pool.blocks = BlockSet {
        eni: vec![NO_ENI],
        length: vec![24],
        base_hi: vec![0],
        base_lo: vec![0x0a63_0000],
        assigned: vec![10],
        cooling: vec![0],
        reserved: vec![0],
        held: vec![0],
        untouched: vec![243],
        marks: vec![0],
    };
    for n in 0..65 {
        let (marks, since) = if n == 0 { (0, NOW - 60_000) } else { (row_marks::NEVER_USED, 0) };
        push(&mut pool.rows, 0x0a63_0010 + n, NO_ENI, 0, marks, since);
    }
    pool.counts = Counts { total: 254, assigned: 10, free: 244, ..Counts::default() };
    pool.rows_left_out = 244 - 65;
    pool
}

/// Whether an allocation answer names only what was shown.
pub(crate) fn allocation_shape(pool: &Snapshot, decision: &AllocDecision) -> Result<(), Fault> {
    match decision.choice {
        Choice::Assign(row) if row as usize >= pool.rows.len() => {
            Err(shape(&format!("row {row} of {} rows", pool.rows.len())))
        }
        _ => Ok(()),
    }
}

/// Whether a plan names only what was shown.
pub(crate) fn plan_shape(call: &PlanCall, plan: &PlanDecision) -> Result<(), Fault> {
    let (enis, rows, blocks) = (call.pool.enis.len(), call.pool.rows.len(), call.pool.blocks.len());
    let wrong = |index: usize, what: &str, of: usize| Err(shape(&format!("action {index} names {what} of {of}")));
    for (index, action) in plan.actions.iter().enumerate() {
        match action {
            Action::Grow { eni: NO_ENI, .. } if enis == 0 => {}
            Action::Grow { eni, .. } | Action::Drain { eni, .. } | Action::Detach(eni) => {
                if usize::from(*eni) >= enis {
                    return wrong(index, &format!("interface {eni}"), enis);
                }
            }
            Action::ReleaseRows(names) => {
                if let Some(row) = names.iter().find(|row| **row as usize >= rows) {
                    return wrong(index, &format!("row {row}"), rows);
                }
            }
            Action::ReleaseBlock(block) if usize::from(*block) >= blocks => {
                return wrong(index, &format!("block {block}"), blocks);
            }
            Action::Attach { subnet, .. } => {
                let subnets = call.cloud.subnets.len();
                if *subnet != 255 && usize::from(*subnet) >= subnets {
                    return wrong(index, &format!("subnet {subnet}"), subnets);
                }
            }
            Action::ReleaseBlock(_) => {}
        }
    }
    Ok(())
}

fn shape(text: &str) -> Fault {
    Fault::new(FaultClass::Shape, &format!("the answer names what was not shown: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_snapshots_are_consistent() {
        for golden in all() {
            let pool = &golden.plan.pool;
            let (c, r, b) = (&pool.counts, &pool.rows, &pool.blocks);
            assert_eq!(c.total, c.assigned + c.free + c.cooling + c.reserved + c.held + c.suspect, "{}", golden.name);
            for len in [r.address_hi.len(), r.eni.len(), r.block.len(), r.marks.len(), r.until_ms.len()] {
                assert_eq!(len, r.len(), "{}", golden.name);
            }
            assert!(r.address_lo.is_sorted() && b.base_lo.is_sorted(), "{}", golden.name);
            assert!(r.eni.iter().all(|e| *e == NO_ENI || usize::from(*e) < pool.enis.len()), "{}", golden.name);
            assert!(r.block.iter().all(|x| *x == NO_BLOCK || usize::from(*x) < b.len()), "{}", golden.name);
        }
    }
}
