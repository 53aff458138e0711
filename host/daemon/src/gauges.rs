//! Gauges and the AWS daemon's page, made from the node's state when somebody looks.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use wipam_core::node::Status;
use wipam_core::policy::eni_marks;

use crate::metrics::Metrics;

/// Sets every gauge.
pub fn set(metrics: &Metrics, status: &Status) {
    let Some(pool) = status.pools.first() else { return };
    let counts = pool.counts;
    metrics.set("awscni_total_ip_addresses", &[], counts.total);
    metrics.set("awscni_assigned_ip_addresses", &[], counts.assigned);
    metrics.set("awscni_eni_allocated", &[], pool.enis.len() as u64);
    metrics.set("awscni_eni_max", &[], status.limits.max_enis.into());
    let per_eni = u64::from(status.limits.slots_per_eni);
    metrics.set("awscni_ip_max", &[], u64::from(status.limits.max_enis) * per_eni);
    metrics.set("wipam_waiting_adds", &[], status.waiting as u64);
    let by_state = [
        ("assigned", counts.assigned),
        ("free", counts.free),
        ("cooling", counts.cooling),
        ("reserved", counts.reserved),
        ("held", counts.held),
        ("suspect", counts.suspect),
        ("assigning", counts.assigning),
        ("releasing", counts.releasing),
    ];
    for (state, n) in by_state {
        metrics.set("wipam_addresses", &[("state", state)], n);
    }
    metrics.forget("awscni_assigned_ip_per_eni");
    let mut per_eni: BTreeMap<&str, u64> = pool.enis.iter().map(|e| (e.id.as_str(), 0)).collect();
    for lease in status.leases.iter().filter(|l| !l.eni.is_empty()) {
        *per_eni.entry(&lease.eni).or_default() += lease.addresses.len() as u64;
    }
    for (eni, n) in per_eni {
        metrics.set("awscni_assigned_ip_per_eni", &[("eni", eni)], n);
    }
}

/// `/v1/enis` as far as the AWS daemon's readers use it: by card, then interface, then assigned address. Container ids
/// are left out, as there.
pub fn aws_enis(status: &Status) -> Value {
    let Some(pool) = status.pools.first() else { return json!({}) };
    let mut enis = Map::new();
    for eni in &pool.enis {
        let mut cidrs = Map::new();
        for lease in status.leases.iter().filter(|l| l.eni == eni.id) {
            for address in &lease.addresses {
                let metadata = json!({ "k8sPodNamespace": lease.pod.namespace, "k8sPodName": lease.pod.name });
                let key = json!({ "networkName": lease.key.network, "containerID": "", "ifName": "" });
                let one = json!({ "Address": address, "IPAMKey": key, "IPAMMetadata": metadata });
                let cidr =
                    json!({ "IPAddresses": { address.to_string(): one }, "IsPrefix": false, "AddressFamily": "" });
                cidrs.insert(format!("{address}/32"), cidr);
            }
        }
        enis.insert(
            eni.id.clone(),
            json!({
                "ID": eni.id, "DeviceNumber": eni.device_index,
                "IsPrimary": eni.marks & eni_marks::PRIMARY != 0, "IsTrunk": eni.marks & eni_marks::TRUNK != 0,
                "IsEFA": eni.marks & eni_marks::EFA != 0, "AvailableIPv4Cidrs": cidrs,
            }),
        );
    }
    json!({ "0": { "TotalIPs": pool.counts.total, "AssignedIPs": pool.counts.assigned, "ENIs": enis } })
}
