//! What the daemon may rely on from EC2 and instance metadata, tested through [`Ec2`].
//!
//! `cargo test -p wipam-ec2 --test contract` runs it against the simulated VPC, which thereby is held to the same
//! contract. On real AWS:
//!
//! ```text
//! WIPAM_TEST_AWS=1 [WIPAM_TEST_SUBNET=subnet-…] cargo test -p wipam-ec2 --test contract -- --test-threads=1
//! ```
//!
//! on an EC2 instance that has a free interface slot, with the permissions that the crate's documentation lists.
//! Region, credentials and endpoints come from the standard chain. Without a subnet id it uses the primary interface's.
//! It makes interfaces, and removes what it made and nothing else. Tests that need faults or a VPC made to measure run
//! in the simulation only.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml lets only the test functions themselves off

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use wipam_core::cloud::{AttachState, Call, EniKind, ErrorKind, Reply};
use wipam_ec2::{Cloud, Ec2, Facts, FactsError, Settings, TAG_CREATED_AT, TAG_INSTANCE};
use wipam_vpc_sim::access_key_of;
use wipam_vpc_sim::model::{
    Bucket, Describe, FaultEffect, FaultRule, InstanceConfig, Request, Response, SubnetConfig, Timing, VpcConfig,
};

#[path = "contract/world.rs"]
mod world;
use world::{INSTANCE, SUBNET, Simulated, everywhere, one_node, simulated, token};

fn slow_and_lagging() -> VpcConfig {
    let timing =
        Timing { describe_lag_ms: 60, metadata_lag_ms: 80, attach_ms: 100, detach_ms: 100, ..Timing::default() };
    VpcConfig { timing, ..one_node() }
}

fn error(code: &str) -> FaultEffect {
    FaultEffect::Error { code: code.into(), message: None, http_status: None }
}

fn delete(eni: &str) -> Call {
    Call::DeleteEni { eni: eni.into() }
}

// === Everywhere ===

#[tokio::test]
async fn an_interface_lives_from_creation_to_deletion() {
    everywhere(slow_and_lagging(), |world| async move {
        let made = world.created(1, 0).await;
        assert_eq!((made.state, made.device, made.attachment.as_deref()), (AttachState::Detached, None, None));
        assert_eq!(
            (made.subnet.as_str(), made.kind, made.addresses.len()),
            (world.subnet.as_str(), EniKind::Interface, 1)
        );
        let me = world.cloud.instance().await.unwrap();
        assert_eq!(made.tags[TAG_INSTANCE], me.instance);
        assert!(made.tags.contains_key(TAG_CREATED_AT));
        let listed = world.when(&made.id, |eni| eni.is_some()).await.unwrap();
        assert_eq!(
            (listed.state, &listed.tags, &listed.addresses),
            (AttachState::Detached, &made.tags, &made.addresses)
        );

        let attached = world.attached(&made.id).await;
        let attachment = attached.attachment.clone().unwrap();
        assert!(!attached.delete_on_termination);
        let eni = made.id.clone();
        let modify = Call::DeleteOnTermination { eni: eni.clone(), attachment: attachment.clone() };
        assert_eq!(world.call(modify).await, Ok(Reply::Done));
        world.when(&eni, |eni| eni.is_some_and(|eni| eni.delete_on_termination)).await;

        let assign = Call::Assign { eni: eni.clone(), addresses: 2, prefixes: 0 };
        let Reply::Assigned { addresses, prefixes } = world.call(assign).await.unwrap() else { panic!("not Assigned") };
        assert_eq!((addresses.len(), prefixes.len()), (2, 0));
        let holds = |all: &[Ipv4Addr]| addresses.iter().all(|address| all.contains(address));
        world.when(&eni, |eni| eni.is_some_and(|eni| holds(&eni.addresses))).await;
        metadata_shows(&world.cloud, &eni, &addresses).await;

        let unassign = Call::Unassign { eni: eni.clone(), addresses: addresses.clone(), prefixes: Vec::new() };
        assert_eq!(world.call(unassign).await, Ok(Reply::Done));
        world.when(&eni, |eni| eni.is_some_and(|eni| eni.addresses == made.addresses)).await;

        assert_eq!(world.fails(delete(&eni)).await.0, ErrorKind::InUse);
        assert_eq!(world.call(Call::DetachEni { eni: eni.clone(), attachment }).await, Ok(Reply::Done));
        world.when(&eni, |eni| eni.is_some_and(|eni| eni.state == AttachState::Detached)).await;
        assert_eq!(world.call(delete(&eni)).await, Ok(Reply::Done));
        world.when(&eni, |eni| eni.is_none()).await;
        assert_eq!(world.fails(delete(&eni)).await.0, ErrorKind::NotFound);
    })
    .await;
}

/// Metadata comes after EC2; looks until it shows the addresses on the interface.
async fn metadata_shows(cloud: &Ec2, eni: &str, addresses: &[Ipv4Addr]) {
    for _ in 0..100 {
        let enis = cloud.attached().await.unwrap();
        let shown = enis.iter().find(|known| known.id == eni);
        if shown.is_some_and(|eni| addresses.iter().all(|address| eni.addresses.contains(address))) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("metadata does not show {addresses:?} on {eni}");
}

#[tokio::test]
async fn prefixes_come_and_go_as_addresses_do() {
    everywhere(slow_and_lagging(), |world| async move {
        if !world.cloud.instance().await.unwrap().prefix_capable {
            return;
        }
        let made = world.created(0, 1).await;
        assert_eq!((made.addresses.len(), made.prefixes.len()), (0, 1));
        assert_eq!(made.prefixes[0].prefix_len(), 28);
        let eni = world.attached(&made.id).await.id;
        let assign = Call::Assign { eni: eni.clone(), addresses: 0, prefixes: 1 };
        let Reply::Assigned { addresses, prefixes } = world.call(assign).await.unwrap() else { panic!("not Assigned") };
        assert_eq!((addresses.len(), prefixes.len()), (0, 1));
        world.when(&eni, |eni| eni.is_some_and(|eni| eni.prefixes.len() == 2)).await;
        let unassign = Call::Unassign { eni: eni.clone(), addresses: Vec::new(), prefixes };
        assert_eq!(world.call(unassign).await, Ok(Reply::Done));
        world.when(&eni, |eni| eni.is_some_and(|eni| eni.prefixes == made.prefixes)).await;
    })
    .await;
}

#[tokio::test]
async fn one_token_makes_one_interface() {
    everywhere(one_node(), |world| async move {
        let token = token();
        let Reply::Created(first) = world.call(world.create(1, 0, &token)).await.unwrap() else { panic!() };
        let Reply::Created(again) = world.call(world.create(1, 0, &token)).await.unwrap() else { panic!() };
        assert_eq!((&first.id, first.primary, &first.addresses), (&again.id, again.primary, &again.addresses));
        // As after a restart that changed a setting: the interface exists, only a describe can tell.
        let (kind, code) = world.fails(world.create(2, 0, &token)).await;
        assert_eq!((kind, code.as_str()), (ErrorKind::NoAnswer, "IdempotentParameterMismatch"));
    })
    .await;
}

#[tokio::test]
async fn what_does_not_exist_is_not_found() {
    everywhere(one_node(), |world| async move {
        let eni = "eni-0fffffffffffffff0".to_owned();
        let attachment = "eni-attach-0fffffffffffffff0".to_owned();
        let subnet = "subnet-0fffffffffffffff0".to_owned();
        let calls = [
            Call::CreateEni { subnet: subnet.clone(), addresses: 0, prefixes: 0, token: token() },
            Call::AttachEni { eni: eni.clone(), device: 1, card: 0 },
            Call::DeleteOnTermination { eni: eni.clone(), attachment: attachment.clone() },
            Call::Assign { eni: eni.clone(), addresses: 1, prefixes: 0 },
            Call::Unassign { eni: eni.clone(), addresses: vec![Ipv4Addr::new(10, 0, 0, 200)], prefixes: Vec::new() },
            Call::DetachEni { eni: eni.clone(), attachment },
            Call::DeleteEni { eni },
            Call::DescribeSubnets { ids: vec![subnet] },
        ];
        for call in calls {
            let (kind, code) = world.fails(call.clone()).await;
            assert_eq!(kind, ErrorKind::NotFound, "{call:?}: {code}");
        }
    })
    .await;
}

#[tokio::test]
async fn too_many_addresses_for_an_interface_is_its_own_error() {
    everywhere(one_node(), |world| async move {
        let eni = world.attached(&world.created(0, 0).await.id).await.id;
        let limit = world.cloud.instance().await.unwrap().ipv4_per_eni;
        let (kind, code) = world.fails(Call::Assign { eni, addresses: limit, prefixes: 0 }).await;
        assert_eq!((kind, code.as_str()), (ErrorKind::AddressLimit, "PrivateIpAddressLimitExceeded"));
    })
    .await;
}

#[tokio::test]
async fn subnets_by_id_or_all_of_our_vpc_and_zone() {
    let mut config = one_node();
    for (id, cidr, zone) in [("subnet-b", "10.0.1.0/24", "a"), ("subnet-elsewhere", "10.0.2.0/24", "b")] {
        let tags = BTreeMap::from([("kubernetes.io/role/cni".to_owned(), "1".to_owned())]);
        let (id, zone, cidr) = (id.into(), zone.into(), cidr.parse().unwrap());
        config.subnets.push(SubnetConfig { id, cidr, zone, tags, ..SubnetConfig::default() });
    }
    everywhere(config, |world| async move {
        let me = world.cloud.instance().await.unwrap();
        let Reply::Subnets(one) = world.call(Call::DescribeSubnets { ids: vec![world.subnet.clone()] }).await.unwrap()
        else {
            panic!("not Subnets")
        };
        assert_eq!((one.len(), &one[0].id, &one[0].zone), (1, &world.subnet, &me.zone));
        assert!(one[0].free > 0 && me.vpc_cidrs.iter().any(|cidr| cidr.contains(&one[0].cidr)));
        let Reply::Subnets(all) = world.call(Call::DescribeSubnets { ids: Vec::new() }).await.unwrap() else {
            panic!()
        };
        assert!(all.contains(&one[0]) && all.iter().all(|subnet| subnet.zone == me.zone));
        if world.sim.is_some() {
            assert_eq!(all.iter().map(|subnet| subnet.id.as_str()).collect::<Vec<_>>(), [SUBNET, "subnet-b"]);
            assert_eq!(all[1].tags["kubernetes.io/role/cni"], "1");
            // 256 − 5 reserved − the primary interface's.
            assert_eq!(all[0].free, 250);
        }
    })
    .await;
}

#[tokio::test]
async fn metadata_and_ec2_tell_the_same_of_the_primary_interface() {
    let mut config = one_node();
    config.instances[0].secondary_addresses = 3;
    config.cidrs.push("100.64.0.0/16".parse().unwrap());
    everywhere(config, |world| async move {
        let me = world.cloud.instance().await.unwrap();
        let from_metadata = world.cloud.attached().await.unwrap();
        let primary = from_metadata.iter().find(|eni| eni.device == Some(0) && eni.card == 0).unwrap();
        assert_eq!((primary.primary, &primary.mac), (me.primary, &me.primary_mac));
        let from_ec2 = world.eni(&primary.id).await.unwrap();
        assert_eq!(
            (from_ec2.primary, &from_ec2.mac, from_ec2.state),
            (me.primary, &me.primary_mac, AttachState::Attached)
        );
        assert_eq!((&from_ec2.addresses, &from_ec2.prefixes), (&primary.addresses, &primary.prefixes));
        assert_eq!((&from_ec2.subnet, from_ec2.device, from_ec2.card), (&primary.subnet, Some(0), 0));
        assert!(primary.subnet_cidr.unwrap().contains(&me.primary));
        assert!(!me.security_groups.is_empty() && me.max_enis >= 1 && me.ipv4_per_eni >= 2);
        if world.sim.is_some() {
            assert_eq!((me.instance.as_str(), me.instance_type.as_str()), (INSTANCE, "m5.large"));
            assert_eq!((me.max_enis, me.ipv4_per_eni, me.prefix_capable), (3, 10, true));
            assert_eq!((me.zone.as_str(), me.vpc_cidrs.len()), ("eu-central-1a", 2));
            assert_eq!((primary.addresses.len(), primary.prefixes.len()), (3, 0));
        }
    })
    .await;
}

// === In the simulation only ===

#[tokio::test]
async fn limits_of_instance_and_account() {
    simulated(
        VpcConfig { max_network_interfaces: 5, ..one_node() },
        |s| s,
        |world| async move {
            for _ in 0..2 {
                world.attached(&world.created(0, 0).await.id).await;
            }
            let eni = world.created(0, 0).await.id;
            let (kind, code) = world.fails(Call::AttachEni { eni, device: 3, card: 0 }).await;
            assert_eq!((kind, code.as_str()), (ErrorKind::EniLimit, "AttachmentLimitExceeded"));
            world.created(0, 0).await;
            let (kind, code) = world.fails(world.create(0, 0, &token())).await;
            assert_eq!((kind, code.as_str()), (ErrorKind::EniLimit, "NetworkInterfaceLimitExceeded"));
        },
    )
    .await;
}

#[tokio::test]
async fn limits_follow_the_instance_type() {
    for (instance_type, max_enis, ipv4_per_eni, prefix_capable) in [
        ("t3.small", 3, 4, true),
        ("m4.4xlarge", 8, 30, false),
        ("m5.4xlarge", 8, 30, true),
        ("p4d.24xlarge", 15, 50, true),
    ] {
        let mut config = one_node();
        config.instances[0].instance_type = instance_type.into();
        simulated(
            config,
            |s| s,
            |world| async move {
                let me = world.cloud.instance().await.unwrap();
                let limits = (me.max_enis, me.ipv4_per_eni, me.prefix_capable);
                assert_eq!(limits, (max_enis, ipv4_per_eni, prefix_capable), "{instance_type}");
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_full_subnet_and_one_without_a_free_block() {
    let mut config = one_node();
    config.subnets[0].cidr = "10.0.0.0/28".parse().unwrap();
    simulated(
        config,
        |s| s,
        |world| async move {
            // Of 16: 5 reserved, 1 the primary interface's.
            let eni = world.created(5, 0).await.id;
            let assign = Call::Assign { eni: eni.clone(), addresses: 5, prefixes: 0 };
            let (kind, code) = world.fails(assign).await;
            assert_eq!((kind, code.as_str()), (ErrorKind::SubnetFull, "InsufficientFreeAddressesInSubnet"));
            world.call(Call::Assign { eni: eni.clone(), addresses: 4, prefixes: 0 }).await.unwrap();
            assert_eq!(world.fails(world.create(0, 0, &token())).await.0, ErrorKind::SubnetFull);
        },
    )
    .await;

    let mut config = one_node();
    config.subnets[0].fragmented = true;
    simulated(
        config,
        |s| s,
        |world| async move {
            let expected = (ErrorKind::NoCidrBlock, "InsufficientCidrBlocks".to_owned());
            assert_eq!(world.fails(world.create(0, 1, &token())).await, expected);
            let eni = world.created(1, 0).await.id;
            assert_eq!(world.fails(Call::Assign { eni, addresses: 0, prefixes: 1 }).await, expected);
        },
    )
    .await;
}

#[tokio::test]
async fn throttling_is_told_and_changes_nothing() {
    let bucket = Bucket { capacity: 1, refill_per_s: 0.001 };
    let throttles = BTreeMap::from([("CreateNetworkInterface".to_owned(), bucket)]);
    simulated(
        VpcConfig { throttles, ..one_node() },
        |s| s,
        |world| async move {
            world.created(0, 0).await;
            let (kind, code) = world.fails(world.create(0, 0, &token())).await;
            assert_eq!((kind, code.as_str()), (ErrorKind::Throttled, "RequestLimitExceeded"));
            // One attempt each: the SDK did not repeat the throttled one.
            assert_eq!((world.sim().calls("CreateNetworkInterface"), world.sim().enis()), (2, 2));
        },
    )
    .await;
}

#[tokio::test]
async fn a_missing_permission_is_told_for_every_action() {
    simulated(
        one_node(),
        |s| s,
        |world| async move {
            world.sim().sim.lock().add_fault(FaultRule::every("*", error("UnauthorizedOperation")));
            let (eni, attachment) = ("eni-1".to_owned(), "eni-attach-1".to_owned());
            let calls = [
                world.create(1, 0, &token()),
                Call::AttachEni { eni: eni.clone(), device: 1, card: 0 },
                Call::DeleteOnTermination { eni: eni.clone(), attachment: attachment.clone() },
                Call::Assign { eni: eni.clone(), addresses: 1, prefixes: 0 },
                Call::Unassign { eni: eni.clone(), addresses: vec![Ipv4Addr::LOCALHOST], prefixes: Vec::new() },
                Call::DetachEni { eni: eni.clone(), attachment },
                Call::DeleteEni { eni },
                Call::DescribeEnis,
                Call::DescribeSubnets { ids: Vec::new() },
            ];
            for call in calls {
                let action = call.action();
                let expected = (ErrorKind::NotAuthorised, "UnauthorizedOperation".to_owned());
                assert_eq!(world.fails(call).await, expected, "{action}");
                assert_eq!(world.sim().calls(action), 1, "{action}");
            }
            let facts = world.cloud.instance().await.unwrap_err();
            assert!(matches!(facts, FactsError::Limits { .. }), "{facts:?}");
        },
    )
    .await;
}

#[tokio::test]
async fn a_lost_answer_leaves_it_open_and_the_token_or_a_describe_closes_it() {
    simulated(
        one_node(),
        |s| s,
        |world| async move {
            let sim = world.sim();
            let create = world.create(2, 0, &token());
            sim.next("CreateNetworkInterface", FaultEffect::LostReply);
            assert_eq!(world.fails(create.clone()).await.0, ErrorKind::NoAnswer);
            assert_eq!(sim.enis(), 2);
            let Reply::Created(eni) = world.call(create).await.unwrap() else { panic!() };
            assert_eq!((sim.enis(), eni.addresses.len()), (2, 2));

            sim.next("AttachNetworkInterface", FaultEffect::LostReply);
            assert_eq!(
                world.fails(Call::AttachEni { eni: eni.id.clone(), device: 1, card: 0 }).await.0,
                ErrorKind::NoAnswer
            );
            let seen = world.eni(&eni.id).await.unwrap();
            assert_eq!((seen.state, seen.device), (AttachState::Attached, Some(1)));

            sim.next("AssignPrivateIpAddresses", FaultEffect::LostReply);
            let assign = Call::Assign { eni: eni.id.clone(), addresses: 1, prefixes: 0 };
            assert_eq!(world.fails(assign).await.0, ErrorKind::NoAnswer);
            assert_eq!(world.eni(&eni.id).await.unwrap().addresses.len(), 3);
        },
    )
    .await;
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_no_answer() {
    let timeout = Duration::from_millis(300);
    simulated(
        one_node(),
        |s| Settings { timeout, ..s },
        |world| async move {
            let create = world.create(0, 0, &token());
            world.sim().next("CreateNetworkInterface", FaultEffect::Latency { ms: 5_000 });
            let expected = (ErrorKind::NoAnswer, "Timeout".to_owned());
            assert_eq!(world.fails(create.clone()).await, expected);
            assert_eq!((world.sim().calls("CreateNetworkInterface"), world.sim().enis()), (1, 2));
            let Reply::Created(_) = world.call(create).await.unwrap() else { panic!() };
            assert_eq!(world.sim().enis(), 2);
        },
    )
    .await;
}

#[tokio::test]
async fn fewer_than_asked_for_is_reported_as_it_is() {
    simulated(
        one_node(),
        |s| s,
        |world| async move {
            world.sim().next("CreateNetworkInterface", FaultEffect::Partial { addresses: 1 });
            let made = world.created(3, 0).await;
            assert_eq!(made.addresses.len(), 1);
            for (addresses, prefixes, expected) in [(3, 0, (2, 0)), (0, 3, (0, 2))] {
                world.sim().next("AssignPrivateIpAddresses", FaultEffect::Partial { addresses: 2 });
                let assign = Call::Assign { eni: made.id.clone(), addresses, prefixes };
                let Reply::Assigned { addresses, prefixes } = world.call(assign).await.unwrap() else { panic!() };
                assert_eq!((addresses.len(), prefixes.len()), expected);
            }
            let seen = world.eni(&made.id).await.unwrap();
            assert_eq!((seen.addresses.len(), seen.prefixes.len()), (3, 2));
        },
    )
    .await;
}

#[tokio::test]
async fn server_errors_are_ambiguous() {
    simulated(
        one_node(),
        |s| s,
        |world| async move {
            for code in ["InternalError", "Unavailable", "ServiceUnavailable"] {
                world.sim().next("CreateNetworkInterface", error(code));
                let expected = (ErrorKind::ServerError, code.to_owned());
                assert_eq!(world.fails(world.create(0, 0, &token())).await, expected);
            }
        },
    )
    .await;
}

#[tokio::test]
async fn all_pages_are_read() {
    simulated(
        one_node(),
        |s| Settings { page_size: 5, ..s },
        |world| async move {
            for _ in 0..12 {
                world.created(0, 0).await;
            }
            let before = world.sim().calls("DescribeNetworkInterfaces");
            let enis = world.enis().await;
            assert_eq!(enis.len(), 13);
            assert_eq!((enis[0].device, enis[0].state), (Some(0), AttachState::Attached));
            // One page of attached ones, three of tagged ones.
            assert_eq!(world.sim().calls("DescribeNetworkInterfaces") - before, 4);
        },
    )
    .await;
}

#[tokio::test]
async fn only_our_interfaces_are_listed() {
    let mut config = one_node();
    let other = InstanceConfig { id: "i-0aaaaaaaaaaaaaaa0".into(), subnet: SUBNET.into(), ..InstanceConfig::default() };
    config.instances.push(other);
    simulated(
        config,
        |s| s,
        |world| async move {
            let ours = world.created(0, 0).await.id;
            // Made by us, but somebody plugged it into another instance.
            let taken = world.created(0, 0).await.id;
            world.sim().sim.with(|vpc, now_ms| {
                let attach = wipam_vpc_sim::model::AttachNetworkInterface {
                    instance_id: "i-0aaaaaaaaaaaaaaa0".into(),
                    network_interface_id: taken.clone(),
                    device_index: 1,
                    network_card_index: 0,
                };
                vpc.call(now_ms, &Request::AttachNetworkInterface(attach)).result.unwrap();
            });
            let enis = world.enis().await;
            let ids: Vec<&str> = enis.iter().skip(1).map(|eni| eni.id.as_str()).collect();
            assert_eq!((enis[0].device, ids), (Some(0), vec![ours.as_str()]));
            assert!(enis[0].tags.is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn what_is_written_on_a_new_interface() {
    let mut config = one_node();
    config.instances[0].security_groups = vec!["sg-a".into(), "sg-b".into()];
    let named = |s| Settings {
        cluster: Some("blue".into()),
        tags: BTreeMap::from([("team".to_owned(), "net".to_owned())]),
        ..s
    };
    simulated(config, named, |world| async move {
        let made = world.created(0, 0).await;
        let keys: Vec<&str> = made.tags.keys().map(String::as_str).collect();
        let expected = ["cluster.k8s.amazonaws.com/name", "eks:eni:owner", TAG_CREATED_AT, TAG_INSTANCE, "team"];
        assert_eq!(keys, expected);
        let describe = Request::DescribeNetworkInterfaces(Describe::id(&made.id));
        let answer = world.sim().sim.with(|vpc, now_ms| vpc.call(now_ms, &describe)).result.unwrap();
        let Response::NetworkInterfaces { items, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(items[0].security_groups, ["sg-a", "sg-b"]);
        assert_eq!(items[0].description, format!("aws-K8S-{INSTANCE}"));
    })
    .await;
}

#[tokio::test]
async fn calls_are_made_in_the_name_of_the_instances_role() {
    simulated(
        one_node(),
        |s| s,
        |world| async move {
            let rule = FaultRule { caller: access_key_of(INSTANCE), ..FaultRule::every("*", error("AuthFailure")) };
            world.sim().sim.lock().add_fault(rule);
            assert_eq!(world.fails(Call::DescribeEnis).await, (ErrorKind::NotAuthorised, "AuthFailure".to_owned()));
        },
    )
    .await;
}

#[tokio::test]
async fn a_start_without_metadata_says_so_and_succeeds_once_it_is_there() {
    if std::env::var_os("WIPAM_TEST_AWS").is_some() {
        return;
    }
    let sim = Simulated::start(one_node()).await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let settings = Settings { imds_endpoint: Some(format!("http://{address}")), ..sim.settings() };
    let Err(error) = Ec2::connect(settings.clone(), Arc::new(())).await else { panic!("connected to nobody") };
    assert!(error.to_string().starts_with("waiting for instance metadata"), "{error}");

    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let options = wipam_vpc_sim::ImdsOptions { instance: Some(INSTANCE.into()), hop_limit: None };
    let server = tokio::spawn(wipam_vpc_sim::serve_imds(listener, sim.sim.clone(), options, std::future::pending()));
    let cloud = Ec2::connect(settings, Arc::new(())).await.unwrap();
    let Ok(Reply::Enis(enis)) = cloud.call(&Call::DescribeEnis).await else { panic!("no interfaces") };
    assert_eq!(enis.len(), 1);
    server.abort();
}
