//! Each [`Call`] as one request of the SDK, and its answer as a [`Reply`].

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use aws_sdk_ec2::types::{
    Filter, InstanceType, NetworkInterfaceAttachmentChanges, ResourceType, Tag, TagSpecification,
};
use ipnet::Ipv4Net;
use wipam_core::cloud::{AttachState, Call, CloudError, EniFacts, ErrorKind, Reply, SubnetFacts};

use crate::cloud::{Cloud, Pending};
use crate::convert;
use crate::ec2::Ec2;
use crate::error::unreadable;
use crate::settings::Limits;

/// Tag with the id of the instance that made an interface.
pub const TAG_INSTANCE: &str = "node.k8s.amazonaws.com/instance_id";
/// Tag with the time of creation, RFC 3339.
pub const TAG_CREATED_AT: &str = "node.k8s.amazonaws.com/createdAt";
/// Tag with the cluster's name.
pub const TAG_CLUSTER: &str = "cluster.k8s.amazonaws.com/name";
/// Tag that tells EKS whose interface this is.
pub const TAG_OWNER: &str = "eks:eni:owner";

/// A node has at most a few dozen interfaces; more pages than this is an endpoint that never ends.
const MAX_PAGES: usize = 200;

impl Cloud for Ec2 {
    fn call<'a>(&'a self, call: &'a Call) -> Pending<'a, Reply, CloudError> {
        Box::pin(async move {
            match call {
                Call::CreateEni { subnet, addresses, prefixes, token } => {
                    self.create(subnet, *addresses, *prefixes, token).await
                }
                Call::AttachEni { eni, device, card } => self.attach(eni, *device, *card).await,
                Call::DeleteOnTermination { eni, attachment } => self.delete_on_termination(eni, attachment).await,
                Call::Assign { eni, addresses, prefixes } => self.assign(eni, *addresses, *prefixes).await,
                Call::Unassign { eni, addresses, prefixes } => self.unassign(eni, addresses, prefixes).await,
                Call::DetachEni { eni, attachment } => self.detach(eni, attachment).await,
                Call::DeleteEni { eni } => self.delete(eni).await,
                Call::DescribeEnis => self.describe_enis().await,
                Call::DescribeSubnets { ids } => self.describe_subnets(ids).await.map(Reply::Subnets),
            }
        })
    }
}

impl Ec2 {
    async fn create(&self, subnet: &str, addresses: u16, prefixes: u16, token: &str) -> Result<Reply, CloudError> {
        let stamp = self.stamp(token).await;
        let request = self
            .client
            .create_network_interface()
            .subnet_id(subnet)
            .client_token(token)
            .description(format!("aws-K8S-{}", self.identity.instance))
            .set_groups(Some(stamp.groups))
            .set_secondary_private_ip_address_count(count(addresses))
            .set_ipv4_prefix_count(count(prefixes))
            .tag_specifications(tag_specification(self.tags(stamp.created_at)));
        match self.request("CreateNetworkInterface", subnet, request.send()).await {
            Ok(answer) => {
                let made = answer.network_interface().ok_or_else(|| unreadable("interface"))?;
                Ok(Reply::Created(Box::new(convert::eni(made)?)))
            }
            Err(error) if error.code == "InvalidParameterValue" => {
                Err(self.perhaps_full(subnet, addresses, prefixes, error).await)
            }
            Err(error) => Err(error),
        }
    }

    /// For a subnet without room EC2 sometimes answers `InvalidParameterValue`, the code of many other mistakes.
    /// Whether it is that is not read from the prose but from the subnet's free count.
    async fn perhaps_full(&self, subnet: &str, addresses: u16, prefixes: u16, error: CloudError) -> CloudError {
        let needed = 1 + u64::from(addresses) + 16 * u64::from(prefixes);
        match self.describe_subnets(&[subnet.to_owned()]).await.as_deref() {
            Ok([facts]) if facts.free < needed => CloudError { kind: ErrorKind::SubnetFull, ..error },
            _ => error,
        }
    }

    fn tags(&self, created_at: String) -> BTreeMap<String, String> {
        let mut tags = BTreeMap::from([
            (TAG_INSTANCE.to_owned(), self.identity.instance.clone()),
            (TAG_CREATED_AT.to_owned(), created_at),
        ]);
        if let Some(cluster) = &self.settings.cluster {
            tags.insert(TAG_CLUSTER.to_owned(), cluster.clone());
            tags.insert(TAG_OWNER.to_owned(), "amazon-vpc-cni".to_owned());
        }
        tags.extend(self.settings.tags.clone());
        tags
    }

    async fn attach(&self, eni: &str, device: u8, card: u8) -> Result<Reply, CloudError> {
        let request = self
            .client
            .attach_network_interface()
            .network_interface_id(eni)
            .instance_id(&self.identity.instance)
            .device_index(i32::from(device))
            .network_card_index(i32::from(card));
        let answer = self.request("AttachNetworkInterface", eni, request.send()).await?;
        Ok(Reply::Attached { attachment: convert::text(answer.attachment_id(), "attachment id")? })
    }

    async fn delete_on_termination(&self, eni: &str, attachment: &str) -> Result<Reply, CloudError> {
        let change =
            NetworkInterfaceAttachmentChanges::builder().attachment_id(attachment).delete_on_termination(true).build();
        let request = self.client.modify_network_interface_attribute().network_interface_id(eni).attachment(change);
        self.request("ModifyNetworkInterfaceAttribute", eni, request.send()).await?;
        Ok(Reply::Done)
    }

    async fn assign(&self, eni: &str, addresses: u16, prefixes: u16) -> Result<Reply, CloudError> {
        let request = self
            .client
            .assign_private_ip_addresses()
            .network_interface_id(eni)
            .set_secondary_private_ip_address_count(count(addresses))
            .set_ipv4_prefix_count(count(prefixes));
        let answer = self.request("AssignPrivateIpAddresses", eni, request.send()).await?;
        convert::assigned(&answer)
    }

    async fn unassign(&self, eni: &str, addresses: &[Ipv4Addr], prefixes: &[Ipv4Net]) -> Result<Reply, CloudError> {
        let request = self
            .client
            .unassign_private_ip_addresses()
            .network_interface_id(eni)
            .set_private_ip_addresses(texts(addresses))
            .set_ipv4_prefixes(texts(prefixes));
        self.request("UnassignPrivateIpAddresses", eni, request.send()).await?;
        Ok(Reply::Done)
    }

    async fn detach(&self, eni: &str, attachment: &str) -> Result<Reply, CloudError> {
        let request = self.client.detach_network_interface().attachment_id(attachment);
        self.request("DetachNetworkInterface", eni, request.send()).await?;
        Ok(Reply::Done)
    }

    async fn delete(&self, eni: &str) -> Result<Reply, CloudError> {
        let request = self.client.delete_network_interface().network_interface_id(eni);
        match self.request("DeleteNetworkInterface", eni, request.send()).await {
            Ok(_) => Ok(Reply::Done),
            // EC2's code for an interface that is still attached. The id is this call's only parameter, and for a bad
            // id there are other codes.
            Err(error) if error.code == "InvalidParameterValue" => Err(CloudError { kind: ErrorKind::InUse, ..error }),
            Err(error) => Err(error),
        }
    }

    /// What is attached to us and what is tagged as ours and attached to nobody. EC2's filters know no *or*, so this
    /// asks twice. The second does not filter by state: an interface that changes sides between the two is then seen
    /// at least once, and of two sights the later one holds.
    async fn describe_enis(&self) -> Result<Reply, CloudError> {
        let mut found = BTreeMap::new();
        for filter in ["attachment.instance-id".to_owned(), format!("tag:{TAG_INSTANCE}")] {
            for eni in self.enis_where(&filter).await? {
                found.insert(eni.id.clone(), eni);
            }
        }
        let mut enis: Vec<EniFacts> = found.into_values().collect();
        enis.sort_by_key(|eni| (eni.state == AttachState::Detached, eni.card, eni.device, eni.id.clone()));
        Ok(Reply::Enis(enis))
    }

    /// All pages of the interfaces where `filter` is our instance's id, except those on another instance.
    async fn enis_where(&self, filter: &str) -> Result<Vec<EniFacts>, CloudError> {
        let instance = &self.identity.instance;
        let mut enis = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let request = self
                .client
                .describe_network_interfaces()
                .filters(Filter::builder().name(filter).values(instance).build())
                .max_results(i32::from(self.settings.page_size.clamp(5, 1000)))
                .set_next_token(next.take());
            let page = self.request("DescribeNetworkInterfaces", instance, request.send()).await?;
            for source in page.network_interfaces().iter().filter(|eni| !convert::elsewhere(eni, instance)) {
                enis.push(convert::eni(source)?);
            }
            next = page.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
            if next.is_none() {
                return Ok(enis);
            }
        }
        Err(unreadable("last page"))
    }

    /// Subnets by id; without ids, all of the instance's VPC and zone.
    async fn describe_subnets(&self, ids: &[String]) -> Result<Vec<SubnetFacts>, CloudError> {
        let mut request = self.client.describe_subnets();
        if ids.is_empty() {
            let equals = |name: &str, value: &str| Filter::builder().name(name).values(value).build();
            request = request
                .filters(equals("vpc-id", &self.identity.vpc))
                .filters(equals("availability-zone", &self.identity.zone));
        } else {
            request = request.set_subnet_ids(Some(ids.to_vec()));
        }
        let answer = self.request("DescribeSubnets", ids.first().map_or("", String::as_str), request.send()).await?;
        let mut subnets = Vec::new();
        for source in answer.subnets() {
            subnets.extend(convert::subnet(source)?);
        }
        Ok(subnets)
    }

    /// The limits of our instance type.
    pub(crate) async fn describe_limits(&self) -> Result<Limits, CloudError> {
        let wanted = self.identity.instance_type.as_str();
        let request = self.client.describe_instance_types().instance_types(InstanceType::from(wanted));
        let answer = self.request("DescribeInstanceTypes", wanted, request.send()).await?;
        let found =
            answer.instance_types().iter().find(|t| t.instance_type().map(InstanceType::as_str) == Some(wanted));
        convert::limits(found.ok_or_else(|| unreadable("instance type"))?)
    }
}

fn tag_specification(tags: BTreeMap<String, String>) -> TagSpecification {
    let tags = tags.into_iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect();
    TagSpecification::builder().resource_type(ResourceType::NetworkInterface).set_tags(Some(tags)).build()
}

/// EC2 refuses a count of 0; not asking is leaving it out.
fn count(value: u16) -> Option<i32> {
    (value > 0).then(|| i32::from(value))
}

fn texts<T: ToString>(values: &[T]) -> Option<Vec<String>> {
    (!values.is_empty()).then(|| values.iter().map(T::to_string).collect())
}
