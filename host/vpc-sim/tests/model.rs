//! The model: single behaviours, and properties over random calls.
#![allow(clippy::unwrap_used)] // helpers of tests may panic as tests do

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use proptest::prelude::*;
use wipam_vpc_sim::model::*;

const SUBNET: &str = "subnet-0000000000000000a";
const CREATE: &str = "CreateNetworkInterface";

fn config() -> VpcConfig {
    let mut config = VpcConfig::default();
    config.instances.push(InstanceConfig { id: "i-1".into(), subnet: SUBNET.into(), ..Default::default() });
    config
}

fn vpc() -> Vpc {
    Vpc::new(config()).unwrap()
}

fn with(change: impl FnOnce(&mut VpcConfig)) -> Vpc {
    let mut config = config();
    change(&mut config);
    Vpc::new(config).unwrap()
}

fn create(wanted: Wanted) -> Request {
    Request::CreateNetworkInterface(CreateNetworkInterface { subnet_id: SUBNET.into(), wanted, ..Default::default() })
}

fn created(outcome: Outcome) -> Eni {
    match outcome.result {
        Ok(Response::Created { eni, .. }) => *eni,
        other => panic!("not created: {other:?}"),
    }
}

fn attach(eni: &str, device_index: u32) -> Request {
    Request::AttachNetworkInterface(AttachNetworkInterface {
        instance_id: "i-1".into(),
        network_interface_id: eni.into(),
        device_index,
        network_card_index: 0,
    })
}

fn attached(outcome: Outcome) -> String {
    match outcome.result {
        Ok(Response::Attached { attachment_id, .. }) => attachment_id,
        other => panic!("not attached: {other:?}"),
    }
}

fn assign(eni: &str, wanted: Wanted) -> Request {
    Request::AssignPrivateIpAddresses(AssignPrivateIpAddresses {
        network_interface_id: eni.into(),
        wanted,
        allow_reassignment: false,
    })
}

fn code(outcome: Outcome) -> String {
    outcome.result.expect_err("should fail").code
}

fn detach(attachment: &str) -> Request {
    Request::DetachNetworkInterface(DetachNetworkInterface { attachment_id: attachment.into(), force: false })
}

fn seen(vpc: &mut Vpc, now_ms: u64, query: Describe) -> Vec<Eni> {
    match vpc.call(now_ms, &Request::DescribeNetworkInterfaces(query)).result {
        Ok(Response::NetworkInterfaces { items, .. }) => items,
        other => panic!("not described: {other:?}"),
    }
}

#[test]
fn an_interface_from_creation_to_deletion() {
    let mut vpc = with(|config| {
        config.timing.attach_ms = 100;
        config.timing.detach_ms = 50;
    });
    let free = vpc.subnets()[0].available;
    assert_eq!(free, 256 - 5 - 1);
    let eni = created(vpc.call(0, &create(Wanted::addresses(3))));
    assert_eq!((eni.addresses.len(), eni.status), (4, EniStatus::Pending));
    assert!(eni.id.len() == 21 && eni.id.starts_with("eni-0"), "{}", eni.id);
    assert_eq!(vpc.subnets()[0].available, free - 4);

    let attachment = attached(vpc.call(10, &attach(&eni.id, 1)));
    let state =
        |vpc: &mut Vpc, now| seen(vpc, now, Describe::id(&eni.id))[0].attachment.clone().map(|plug| plug.status);
    assert_eq!(state(&mut vpc, 109), Some(AttachStatus::Attaching));
    assert_eq!(vpc.imds_view(109, "i-1").unwrap().interfaces.len(), 1);
    assert_eq!(state(&mut vpc, 110), Some(AttachStatus::Attached));
    assert_eq!(vpc.imds_view(110, "i-1").unwrap().interfaces.len(), 2);

    let delete = Request::DeleteNetworkInterface { network_interface_id: eni.id.clone() };
    assert_eq!(code(vpc.call(120, &delete)), "InvalidParameterValue");
    assert_eq!(vpc.call(130, &detach(&attachment)).result, Ok(Response::Done));
    assert_eq!(code(vpc.call(131, &detach(&attachment))), "IncorrectState");
    assert_eq!(state(&mut vpc, 179), Some(AttachStatus::Detaching));
    assert_eq!(state(&mut vpc, 180), None);
    assert_eq!(code(vpc.call(181, &detach(&attachment))), "InvalidAttachmentID.NotFound");
    assert_eq!(vpc.call(182, &delete).result, Ok(Response::Done));
    assert_eq!(code(vpc.call(183, &delete)), "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(vpc.subnets()[0].available, free);
}

#[test]
fn limits_of_the_instance_type() {
    let mut vpc = vpc();
    let first = created(vpc.call(0, &create(Wanted::addresses(9))));
    attached(vpc.call(0, &attach(&first.id, 1)));
    assert_eq!(code(vpc.call(0, &assign(&first.id, Wanted::addresses(1)))), "PrivateIpAddressLimitExceeded");
    assert_eq!(code(vpc.call(0, &attach(&first.id, 2))), "InvalidNetworkInterface.InUse");
    let second = created(vpc.call(0, &create(Wanted::default())));
    assert_eq!(code(vpc.call(0, &attach(&second.id, 1))), "InvalidParameterValue");
    attached(vpc.call(0, &attach(&second.id, 2)));
    let third = created(vpc.call(0, &create(Wanted::default())));
    assert_eq!(code(vpc.call(0, &attach(&third.id, 3))), "AttachmentLimitExceeded");
    let wide = created(vpc.call(0, &create(Wanted::addresses(20))));
    assert_eq!(code(vpc.call(0, &attach(&wide.id, 3))), "AttachmentLimitExceeded");
    assert_eq!(code(vpc.call(0, &create(Wanted::addresses(50)))), "PrivateIpAddressLimitExceeded");
}

#[test]
fn cards_have_their_own_limits_and_indexes() {
    let mut vpc = with(|config| config.instances[0].instance_type = "p5.48xlarge".into());
    let plug = |card, index, eni: &str| {
        let Request::AttachNetworkInterface(request) = attach(eni, index) else { panic!() };
        Request::AttachNetworkInterface(AttachNetworkInterface { network_card_index: card, ..request })
    };
    let enis: Vec<String> = (0..4).map(|_| created(vpc.call(0, &create(Wanted::default()))).id).collect();
    attached(vpc.call(0, &plug(0, 1, &enis[0])));
    attached(vpc.call(0, &plug(1, 1, &enis[1])));
    assert_eq!(code(vpc.call(0, &plug(0, 2, &enis[2]))), "AttachmentLimitExceeded");
    assert_eq!(code(vpc.call(0, &plug(32, 1, &enis[2]))), "InvalidParameterValue");
}

#[test]
fn prefixes() {
    let mut vpc = with(|config| config.subnets[0].cidr = "10.0.0.0/26".parse().unwrap());
    let eni = created(vpc.call(0, &create(Wanted::prefixes(1))));
    assert_eq!(eni.prefixes, ["10.0.0.16/28".parse().unwrap()]);
    assert_eq!(vpc.subnets()[0].available, 64 - 5 - 1 - 1 - 16);
    assert!(vpc.call(0, &assign(&eni.id, Wanted::prefixes(1))).result.is_ok());
    // The first block has the reserved addresses, the last one the broadcast address.
    assert_eq!(code(vpc.call(0, &assign(&eni.id, Wanted::prefixes(1)))), "InsufficientCidrBlocks");
    let give_back = Request::UnassignPrivateIpAddresses(UnassignPrivateIpAddresses {
        network_interface_id: eni.id.clone(),
        addresses: vec![],
        prefixes: eni.prefixes.clone(),
    });
    assert_eq!(vpc.call(0, &give_back).result, Ok(Response::Done));
    assert_eq!(code(vpc.call(0, &give_back)), "InvalidParameterValue");
    assert!(vpc.call(0, &assign(&eni.id, Wanted::prefixes(1))).result.is_ok());
}

#[test]
fn a_fragmented_subnet_has_addresses_but_no_prefix() {
    let mut vpc = with(|config| config.subnets[0].fragmented = true);
    assert!(vpc.subnets()[0].available > 200);
    assert_eq!(code(vpc.call(0, &create(Wanted::prefixes(1)))), "InsufficientCidrBlocks");
    // The first and the last block have reserved addresses, so no prefix could be had there anyway.
    assert_eq!(vpc.vacate(SUBNET, u32::MAX), 14);
    assert!(vpc.call(0, &create(Wanted::prefixes(1))).result.is_ok());
}

#[test]
fn xen_has_no_prefixes() {
    let mut vpc = with(|config| config.instances[0].instance_type = "m4.4xlarge".into());
    let primary = vpc.enis(0)[0].id.clone();
    assert_eq!(code(vpc.call(0, &assign(&primary, Wanted::prefixes(1)))), "InvalidParameterCombination");
}

#[test]
fn a_full_subnet_gives_all_or_nothing() {
    let mut vpc = vpc();
    let free = vpc.subnets()[0].available;
    assert_eq!(vpc.occupy(SUBNET, free - 3), free - 3);
    assert_eq!(code(vpc.call(0, &create(Wanted::addresses(3)))), "InsufficientFreeAddressesInSubnet");
    assert_eq!(vpc.subnets()[0].available, 3);
    assert_eq!(created(vpc.call(0, &create(Wanted::addresses(2)))).addresses.len(), 3);
    assert_eq!(vpc.subnets()[0].available, 0);
}

#[test]
fn named_addresses_and_reassignment() {
    let mut vpc = vpc();
    let address = Ipv4Addr::new(10, 0, 0, 77);
    let wanted = Wanted { addresses: vec![address], ..Wanted::default() };
    let first = created(vpc.call(0, &create(wanted.clone())));
    let second = created(vpc.call(0, &create(Wanted::default())));
    assert_eq!(code(vpc.call(0, &assign(&second.id, wanted.clone()))), "InvalidIPAddress.InUse");
    let outside = Wanted { addresses: vec![Ipv4Addr::new(10, 9, 0, 1)], ..Wanted::default() };
    assert_eq!(code(vpc.call(0, &assign(&second.id, outside))), "InvalidParameterValue");
    let Request::AssignPrivateIpAddresses(request) = assign(&second.id, wanted) else { panic!() };
    let request = AssignPrivateIpAddresses { allow_reassignment: true, ..request };
    assert!(vpc.call(0, &Request::AssignPrivateIpAddresses(request)).result.is_ok());
    let enis = vpc.enis(0);
    let of = |id: &str| enis.iter().find(|eni| eni.id == id).unwrap().secondary().to_vec();
    assert_eq!((of(&first.id), of(&second.id)), (vec![], vec![address]));
}

#[test]
fn a_client_token_makes_one_interface() {
    let mut vpc = vpc();
    let request = CreateNetworkInterface {
        subnet_id: SUBNET.into(),
        client_token: Some("t1".into()),
        wanted: Wanted::addresses(2),
        ..Default::default()
    };
    vpc.add_fault(FaultRule::nth(CREATE, 1, FaultEffect::LostReply));
    let lost = vpc.call(0, &Request::CreateNetworkInterface(request.clone()));
    assert!(lost.lost_reply);
    let again = vpc.call(1000, &Request::CreateNetworkInterface(request.clone()));
    assert!(!again.lost_reply);
    assert_eq!(created(lost).id, created(again).id);
    assert_eq!(vpc.enis(1000).len(), 2);
    let other = CreateNetworkInterface { wanted: Wanted::addresses(3), ..request };
    assert_eq!(code(vpc.call(1000, &Request::CreateNetworkInterface(other))), "IdempotentParameterMismatch");
}

#[test]
fn readers_lag_behind() {
    let mut vpc = with(|config| {
        config.timing.describe_lag_ms = 1000;
        config.timing.metadata_lag_ms = 2000;
    });
    let eni = created(vpc.call(5000, &create(Wanted::default())));
    attached(vpc.call(5000, &attach(&eni.id, 1)));
    let query = || Describe::by("attachment.instance-id", "i-1");
    assert_eq!(seen(&mut vpc, 5999, query()).len(), 1);
    let by_id = Request::DescribeNetworkInterfaces(Describe::id(&eni.id));
    assert_eq!(code(vpc.call(5999, &by_id)), "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(seen(&mut vpc, 6000, query()).len(), 2);
    assert_eq!(vpc.imds_view(6999, "i-1").unwrap().interfaces.len(), 1);
    assert_eq!(vpc.imds_view(7000, "i-1").unwrap().interfaces.len(), 2);
    assert_eq!(vpc.enis(7000).len(), 2);

    let primary = vpc.enis(7000).iter().find(|eni| eni.attachment.as_ref().unwrap().device_index == 0).unwrap().clone();
    assert!(vpc.call(8000, &assign(&primary.id, Wanted::addresses(1))).result.is_ok());
    let count = |vpc: &mut Vpc, now| vpc.imds_view(now, "i-1").unwrap().interfaces[0].0.addresses.len();
    assert_eq!((count(&mut vpc, 9999), count(&mut vpc, 10_000)), (1, 2));
}

#[test]
fn faults_by_rule() {
    let mut vpc = vpc();
    let error = |code: &str| FaultEffect::Error { code: code.into(), message: None, http_status: None };
    vpc.add_fault(FaultRule { after: 1, count: Some(2), ..FaultRule::every("Create*", error("InternalError")) });
    vpc.add_fault(FaultRule::every(CREATE, FaultEffect::Latency { ms: 40 }));
    vpc.add_fault(FaultRule { caller: "ASIABAD".into(), ..FaultRule::every("*", error("UnauthorizedOperation")) });
    vpc.add_fault(FaultRule { from_ms: 100, ..FaultRule::every(CREATE, FaultEffect::Partial { addresses: 2 }) });
    let request = create(Wanted::addresses(3));
    assert_eq!(vpc.call(0, &request).latency_ms, 40);
    assert_eq!(code(vpc.call(0, &request)), "InternalError");
    let refused = vpc.call(0, &request).result.unwrap_err();
    assert_eq!(refused.http_status, 500);
    assert_eq!(created(vpc.call(99, &request)).secondary().len(), 3);
    assert_eq!(created(vpc.call(100, &request)).secondary().len(), 2);
    assert_eq!(code(vpc.call_as(100, "ASIABAD", false, &request)), "UnauthorizedOperation");
    assert_eq!(code(vpc.call_as(100, "ASIAGOOD", true, &request)), "DryRunOperation");
    let count = vpc.calls()[CREATE];
    assert_eq!((count.ok, count.failed, count.throttled), (3, 4, 0));
    vpc.clear_faults();
    assert_eq!(vpc.call_as(100, "ASIABAD", false, &request).latency_ms, 0);
}

#[test]
fn a_fault_by_probability_hits_about_so_often() {
    let mut vpc = vpc();
    let effect = FaultEffect::Error { code: "InternalError".into(), message: None, http_status: None };
    vpc.add_fault(FaultRule { probability: 0.25, ..FaultRule::every("DescribeVpcs", effect) });
    let calls = (0..4000).filter(|_| vpc.call(0, &Request::DescribeVpcs(Describe::default())).result.is_err());
    let hits = calls.count();
    assert!((900..1100).contains(&hits), "{hits}");
}

#[test]
fn throttling() {
    let mut vpc = with(|config| {
        config.throttles = BTreeMap::from([(CREATE.to_owned(), Bucket { capacity: 2, refill_per_s: 1.0 })]);
    });
    let request = create(Wanted::default());
    assert!(vpc.call(0, &request).result.is_ok() && vpc.call(0, &request).result.is_ok());
    let refused = vpc.call(0, &request).result.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.http_status), ("RequestLimitExceeded", 503));
    assert!(vpc.call(1000, &request).result.is_ok());
    assert_eq!(vpc.calls()[CREATE].throttled, 1);
}

#[test]
fn termination_takes_only_what_was_to_go() {
    let mut vpc = vpc();
    let goes = created(vpc.call(0, &create(Wanted::addresses(1))));
    let stays = created(vpc.call(0, &create(Wanted::addresses(1))));
    let attachment = attached(vpc.call(0, &attach(&goes.id, 1)));
    attached(vpc.call(0, &attach(&stays.id, 2)));
    let modify = Request::ModifyNetworkInterfaceAttribute(ModifyNetworkInterfaceAttribute {
        network_interface_id: goes.id.clone(),
        delete_on_termination: Some((attachment, true)),
        ..Default::default()
    });
    assert_eq!(vpc.call(0, &modify).result, Ok(Response::Done));
    let before = vpc.generation(0);
    assert!(vpc.terminate_instance(0, "i-1") && !vpc.terminate_instance(0, "i-1"));
    assert_ne!(vpc.generation(0), before);
    let left = vpc.enis(0);
    assert_eq!(left.iter().map(|eni| (&eni.id, eni.status)).collect::<Vec<_>>(), [(&stays.id, EniStatus::Available)]);
    assert_eq!(vpc.subnets()[0].available, 256 - 5 - 2);
    assert!(vpc.imds_view(0, "i-1").is_none());
}

#[test]
fn paging_and_filters() {
    let mut vpc = vpc();
    for index in 0..12 {
        let tags = BTreeMap::from([("n".to_owned(), format!("v{}", index % 2))]);
        let request = CreateNetworkInterface { subnet_id: SUBNET.into(), tags, ..Default::default() };
        created(vpc.call(0, &Request::CreateNetworkInterface(request)));
    }
    let mut query = Describe { max_results: Some(5), ..Describe::by("status", "available") };
    let mut all = BTreeSet::new();
    let mut pages = 0;
    loop {
        match vpc.call(0, &Request::DescribeNetworkInterfaces(query.clone())).result {
            Ok(Response::NetworkInterfaces { items, next_token }) => {
                all.extend(items.into_iter().map(|eni| eni.id));
                pages += 1;
                query.next_token = next_token;
            }
            other => panic!("{other:?}"),
        }
        if query.next_token.is_none() {
            break;
        }
    }
    assert_eq!((all.len(), pages), (12, 3));
    assert_eq!(seen(&mut vpc, 0, Describe::by("tag:n", "v1")).len(), 6);
    assert_eq!(seen(&mut vpc, 0, Describe::by("tag:n", "v*")).len(), 12);
    assert_eq!(seen(&mut vpc, 0, Describe::by("tag-key", "n")).len(), 12);
    let wrong = Request::DescribeNetworkInterfaces(Describe::by("no-such", "x"));
    assert_eq!(code(vpc.call(0, &wrong)), "InvalidParameterValue");
    let bad = Describe { next_token: Some("zz".into()), ..Describe::default() };
    assert_eq!(code(vpc.call(0, &Request::DescribeNetworkInterfaces(bad))), "InvalidNextToken");
}

#[test]
fn tags_of_everything() {
    let mut vpc = vpc();
    let eni = vpc.enis(0)[0].id.clone();
    let vpc_id = vpc.config().vpc_id.clone();
    let resources = vec![eni.clone(), "i-1".into(), SUBNET.into(), vpc_id];
    let tags = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    assert!(vpc.call(0, &Request::CreateTags { resources: resources.clone(), tags: tags.clone() }).result.is_ok());
    let count = |vpc: &mut Vpc| match vpc.call(0, &Request::DescribeTags(Describe::by("key", "k"))).result {
        Ok(Response::Tags { items, .. }) => items.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(&mut vpc), 4);
    let remove = |value: &str| Request::DeleteTags {
        resources: resources.clone(),
        tags: vec![("k".into(), Some(value.into()))],
    };
    assert!(vpc.call(0, &remove("other")).result.is_ok());
    assert_eq!(count(&mut vpc), 4);
    assert!(vpc.call(0, &remove("v")).result.is_ok());
    assert_eq!(count(&mut vpc), 0);
    let gone = Request::CreateTags { resources: vec![eni, "eni-0123".into()], tags };
    assert_eq!(code(vpc.call(0, &gone)), "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(count(&mut vpc), 0);
}

#[test]
fn wrong_configurations_say_what_is_wrong() {
    let reason = |change: fn(&mut VpcConfig)| {
        let mut config = config();
        change(&mut config);
        Vpc::new(config).unwrap_err().to_string()
    };
    assert!(reason(|c| c.subnets[0].cidr = "10.0.0.0/29".parse().unwrap()).contains("/8 to /28"));
    assert!(reason(|c| c.subnets[0].cidr = "10.1.0.0/24".parse().unwrap()).contains("lies in no range"));
    assert!(reason(|c| c.instances[0].instance_type = "m5.tiny".into()).contains("unknown instance type"));
    assert!(reason(|c| c.instances[0].subnet = "subnet-x".into()).contains("unknown subnet"));
    assert!(
        reason(|c| {
            let twin = SubnetConfig { id: "subnet-2".into(), ..c.subnets[0].clone() };
            c.subnets.push(twin);
        })
        .contains("overlaps")
    );
}

#[test]
fn a_configuration_survives_json() {
    let mut config = config();
    config.timing = Timing::typical();
    config.throttles = Bucket::documented();
    config.faults.push(FaultRule::nth(CREATE, 2, FaultEffect::LostReply));
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<VpcConfig>(&text).unwrap(), config);
    let rule: FaultRule =
        serde_json::from_str(r#"{"action":"Create*","effect":{"kind":"partial","addresses":2}}"#).unwrap();
    assert_eq!(rule, FaultRule::every("Create*", FaultEffect::Partial { addresses: 2 }));
    assert!(serde_json::from_str::<VpcConfig>(r#"{"subnetz":[]}"#).is_err());
}

/// A random call, with indexes into what exists instead of ids.
#[derive(Debug, Clone)]
enum Step {
    Create { addresses: u32, prefixes: bool },
    Attach { eni: usize, index: u32 },
    Assign { eni: usize, count: u32, prefixes: bool },
    Unassign { eni: usize, count: usize, prefixes: bool },
    Detach { eni: usize, force: bool },
    Delete { eni: usize },
    Wait { ms: u64 },
    Terminate,
    Run,
    Occupy { count: u32 },
    Vacate { count: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..12, any::<bool>()).prop_map(|(addresses, prefixes)| Step::Create { addresses, prefixes }),
        4 => (any::<usize>(), 0u32..5).prop_map(|(eni, index)| Step::Attach { eni, index }),
        6 => (any::<usize>(), 0u32..12, any::<bool>())
            .prop_map(|(eni, count, prefixes)| Step::Assign { eni, count, prefixes }),
        5 => (any::<usize>(), 1usize..8, any::<bool>())
            .prop_map(|(eni, count, prefixes)| Step::Unassign { eni, count, prefixes }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(eni, force)| Step::Detach { eni, force }),
        2 => any::<usize>().prop_map(|eni| Step::Delete { eni }),
        3 => (0u64..3000).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Terminate),
        1 => Just(Step::Run),
        1 => (0u32..40).prop_map(|count| Step::Occupy { count }),
        1 => (0u32..40).prop_map(|count| Step::Vacate { count }),
    ]
}

fn property_config(seed: u64, scattered: bool) -> VpcConfig {
    let mut config = config();
    config.seed = seed;
    config.subnets[0].cidr = "10.0.0.0/24".parse().unwrap();
    config.subnets[0].occupied_random = 20;
    config.placement = if scattered { Placement::Scattered } else { Placement::Lowest };
    config.timing = Timing::typical();
    let partial = FaultEffect::Partial { addresses: 2 };
    config.faults.push(FaultRule { probability: 0.1, ..FaultRule::every("*", partial) });
    config
}

/// Plays steps; answers all that was seen, for comparison, and what others took.
fn play(vpc: &mut Vpc, steps: &[Step]) -> (Vec<String>, i64) {
    let (mut now, mut log, mut foreign) = (0u64, Vec::new(), 20i64);
    for step in steps {
        let enis = vpc.enis(now);
        let pick = |index: usize| enis.get(index % enis.len().max(1)).cloned();
        let units = |count: u32, prefixes| if prefixes { Wanted::prefixes(count) } else { Wanted::addresses(count) };
        let request = match step {
            Step::Create { addresses, prefixes } => Some(create(units(*addresses, *prefixes))),
            Step::Attach { eni, index } => pick(*eni).map(|eni| attach(&eni.id, *index)),
            Step::Assign { eni, count, prefixes } => pick(*eni).map(|eni| assign(&eni.id, units(*count, *prefixes))),
            Step::Unassign { eni, count, prefixes } => pick(*eni).map(|eni| {
                let keep = |use_it: bool| if use_it { *count } else { 0 };
                Request::UnassignPrivateIpAddresses(UnassignPrivateIpAddresses {
                    network_interface_id: eni.id.clone(),
                    addresses: eni.secondary().iter().copied().take(keep(!prefixes)).collect(),
                    prefixes: eni.prefixes.iter().copied().take(keep(*prefixes)).collect(),
                })
            }),
            Step::Detach { eni, force } => pick(*eni).and_then(|eni| eni.attachment.clone()).map(|plug| {
                Request::DetachNetworkInterface(DetachNetworkInterface { attachment_id: plug.id, force: *force })
            }),
            Step::Delete { eni } => {
                pick(*eni).map(|eni| Request::DeleteNetworkInterface { network_interface_id: eni.id.clone() })
            }
            Step::Wait { ms } => {
                now += ms;
                None
            }
            Step::Terminate => {
                vpc.terminate_instance(now, "i-1");
                None
            }
            Step::Run => {
                let _ = vpc.run_instance(now, InstanceConfig { subnet: SUBNET.into(), ..Default::default() });
                None
            }
            Step::Occupy { count } => {
                foreign += i64::from(vpc.occupy(SUBNET, *count));
                None
            }
            Step::Vacate { count } => {
                foreign -= i64::from(vpc.vacate(SUBNET, *count));
                None
            }
        };
        if let Some(request) = request {
            log.push(format!("{:?}", vpc.call(now, &request)));
        }
        log.push(format!("{:?}", vpc.imds_view(now, "i-1")));
        check(vpc, now, foreign);
    }
    (log, foreign)
}

fn check(vpc: &mut Vpc, now: u64, foreign: i64) {
    let mut owned = BTreeSet::new();
    let mut plugged: BTreeMap<(String, u32), Vec<u32>> = BTreeMap::new();
    let enis = vpc.enis(now);
    for eni in &enis {
        for address in all_addresses(eni) {
            assert!(owned.insert(address), "{address} is owned twice");
            let low = u32::from(address) & 0xFF;
            assert!(low >= 4 && low != 255, "{address} is reserved");
        }
        let limit = match &eni.attachment {
            Some(plug) => {
                plugged.entry((plug.instance_id.clone(), plug.network_card_index)).or_default().push(plug.device_index);
                10
            }
            None => 50,
        };
        assert!(eni.units() <= limit, "{eni:?}");
        assert_eq!(eni.attachment.is_some(), eni.status == EniStatus::InUse);
    }
    for (place, mut indexes) in plugged {
        assert!(indexes.len() <= 3, "{place:?} has {indexes:?}");
        indexes.sort_unstable();
        indexes.dedup_by(|left, right| {
            assert_ne!(left, right, "{place:?}");
            false
        });
    }
    assert_eq!(i64::from(vpc.subnets()[0].available), 256 - 5 - owned.len() as i64 - foreign);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// No address is owned twice, limits hold, free counts are right; and the same run gives the same answers.
    #[test]
    fn holds_over_random_calls(
        steps in proptest::collection::vec(step(), 1..80),
        seed in any::<u64>(),
        scattered in any::<bool>(),
    ) {
        let mut first = Vpc::new(property_config(seed, scattered)).unwrap();
        let mut second = Vpc::new(property_config(seed, scattered)).unwrap();
        prop_assert_eq!(play(&mut first, &steps), play(&mut second, &steps));
    }
}
