//! From the model's answers to EC2's XML. Element names are those of the published service model.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::xml::Xml;
use crate::instance_types::{Hypervisor, InstanceType};
use crate::model::{Attachment, Ec2Error, Eni, Instance, Response, Subnet, VpcConfig, VpcInfo, state_name};
use crate::sim::{Clock, timestamp};

const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// What all answers have in common.
pub(super) struct Scene {
    vpc_id: String,
    account: String,
    region: String,
    clock: Clock,
}

/// The document of a failed call.
pub(super) fn error(error: &Ec2Error, request_id: &str) -> String {
    let mut xml = Xml::default();
    xml.node("Response", |xml| {
        xml.node("Errors", |xml| {
            xml.node("Error", |xml| {
                xml.leaf("Code", &error.code);
                xml.leaf("Message", &error.message);
            });
        });
        xml.leaf("RequestID", request_id);
    });
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}", xml.finish())
}

impl Scene {
    pub(super) fn of(config: &VpcConfig, clock: Clock) -> Self {
        Self { vpc_id: config.vpc_id.clone(), account: config.account.clone(), region: config.region.clone(), clock }
    }

    /// The document of a call that was done.
    pub(super) fn success(&self, action: &str, response: &Response, request_id: &str) -> String {
        let mut xml = Xml::default();
        xml.leaf("requestId", request_id);
        let next_token = self.body(&mut xml, response);
        if let Some(token) = next_token {
            xml.leaf("nextToken", token);
        }
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{action}Response xmlns=\"{NAMESPACE}\">{}</{action}Response>",
            xml.finish()
        )
    }

    fn body<'a>(&self, xml: &mut Xml, response: &'a Response) -> Option<&'a String> {
        match response {
            Response::NetworkInterfaces { items, next_token } => {
                xml.items("networkInterfaceSet", items, |xml, eni| self.eni(xml, eni));
                return next_token.as_ref();
            }
            Response::Instances { items, next_token } => {
                xml.items("reservationSet", items, |xml, instance| self.reservation(xml, instance));
                return next_token.as_ref();
            }
            Response::InstanceTypes { items, next_token } => {
                xml.items("instanceTypeSet", items, instance_type);
                return next_token.as_ref();
            }
            Response::Subnets { items, next_token } => {
                xml.items("subnetSet", items, |xml, subnet| self.subnet(xml, subnet));
                return next_token.as_ref();
            }
            Response::Vpcs { items, next_token } => {
                xml.items("vpcSet", items, |xml, vpc| self.vpc(xml, vpc));
                return next_token.as_ref();
            }
            Response::Tags { items, next_token } => {
                xml.items("tagSet", items, |xml, tag| {
                    xml.leaf("resourceId", &tag.resource_id);
                    xml.leaf("resourceType", tag.resource_type);
                    xml.leaf("key", &tag.key);
                    xml.leaf("value", &tag.value);
                });
                return next_token.as_ref();
            }
            Response::Created { eni, client_token } => {
                xml.node("networkInterface", |xml| self.eni(xml, eni));
                xml.leaf("clientToken", client_token);
            }
            Response::Attached { attachment_id, network_card_index } => {
                xml.leaf("attachmentId", attachment_id);
                xml.leaf("networkCardIndex", network_card_index);
            }
            Response::Assigned { network_interface_id, addresses, prefixes } => {
                xml.leaf("networkInterfaceId", network_interface_id);
                xml.items("assignedPrivateIpAddressesSet", addresses, |xml, address| {
                    xml.leaf("privateIpAddress", address);
                });
                xml.items("assignedIpv4PrefixSet", prefixes, |xml, prefix| xml.leaf("ipv4Prefix", prefix));
            }
            Response::Done => xml.leaf("return", true),
        }
        None
    }

    /// What an interface is under DescribeNetworkInterfaces.
    fn eni(&self, xml: &mut Xml, eni: &Eni) {
        xml.leaf("availabilityZone", &eni.availability_zone);
        xml.leaf("requesterManaged", false);
        tags(xml, &eni.tags);
        self.eni_core(xml, eni);
        if let Some(attachment) = &eni.attachment {
            xml.node("attachment", |xml| {
                xml.leaf("instanceId", &attachment.instance_id);
                xml.leaf("instanceOwnerId", &self.account);
                self.attachment(xml, attachment);
            });
        }
    }

    /// What an interface is both by itself and as a part of an instance.
    fn eni_core(&self, xml: &mut Xml, eni: &Eni) {
        xml.leaf("networkInterfaceId", &eni.id);
        xml.leaf("subnetId", &eni.subnet_id);
        xml.leaf("vpcId", &self.vpc_id);
        xml.leaf("description", &eni.description);
        xml.leaf("ownerId", &self.account);
        xml.leaf("status", eni.status.as_str());
        xml.leaf("macAddress", &eni.mac);
        xml.leaf("privateIpAddress", eni.primary());
        xml.leaf("privateDnsName", self.dns(eni.primary()));
        xml.leaf("sourceDestCheck", eni.source_dest_check);
        xml.leaf("interfaceType", "interface");
        groups(xml, &eni.security_groups);
        self.association(xml, eni);
        xml.items("privateIpAddressesSet", eni.addresses.iter().enumerate(), |xml, (index, address)| {
            xml.leaf("privateIpAddress", address);
            xml.leaf("privateDnsName", self.dns(*address));
            xml.leaf("primary", index == 0);
            if index == 0 {
                self.association(xml, eni);
            }
        });
        xml.items("ipv6AddressesSet", std::iter::empty::<()>(), |_, ()| {});
        if !eni.prefixes.is_empty() {
            xml.items("ipv4PrefixSet", &eni.prefixes, |xml, prefix| xml.leaf("ipv4Prefix", prefix));
        }
    }

    fn attachment(&self, xml: &mut Xml, attachment: &Attachment) {
        xml.leaf("attachmentId", &attachment.id);
        xml.leaf("deviceIndex", attachment.device_index);
        xml.leaf("networkCardIndex", attachment.network_card_index);
        xml.leaf("status", attachment.status.as_str());
        xml.leaf("attachTime", timestamp(self.clock.unix_of(attachment.attach_time_ms)));
        xml.leaf("deleteOnTermination", attachment.delete_on_termination);
    }

    fn association(&self, xml: &mut Xml, eni: &Eni) {
        if let Some(address) = eni.public_ip {
            xml.node("association", |xml| {
                xml.leaf("publicIp", address);
                xml.leaf("publicDnsName", "");
                xml.leaf("ipOwnerId", "amazon");
            });
        }
    }

    fn reservation(&self, xml: &mut Xml, instance: &Instance) {
        xml.leaf("reservationId", instance.id.replacen('i', "r", 1));
        xml.leaf("ownerId", &self.account);
        groups(xml, &[]);
        xml.items("instancesSet", [instance], |xml, instance| self.instance(xml, instance));
    }

    fn instance(&self, xml: &mut Xml, instance: &Instance) {
        xml.leaf("instanceId", &instance.id);
        xml.leaf("imageId", "ami-00000000000000000");
        xml.node("instanceState", |xml| {
            xml.leaf("code", if instance.running { 16 } else { 48 });
            xml.leaf("name", state_name(instance.running));
        });
        xml.leaf("privateDnsName", self.dns(instance.private_ip));
        xml.leaf("instanceType", &instance.instance_type);
        xml.leaf("launchTime", timestamp(self.clock.unix_of(instance.launch_time_ms)));
        xml.node("placement", |xml| {
            xml.leaf("availabilityZone", &instance.availability_zone);
            xml.leaf("tenancy", "default");
        });
        if instance.running {
            xml.leaf("subnetId", &instance.subnet_id);
            xml.leaf("vpcId", &self.vpc_id);
            xml.leaf("privateIpAddress", instance.private_ip);
            if let Some(address) = instance.public_ip {
                xml.leaf("ipAddress", address);
            }
        }
        groups(xml, instance.enis.first().map_or(&[], |eni| &eni.security_groups));
        tags(xml, &instance.tags);
        xml.items("networkInterfaceSet", &instance.enis, |xml, eni| {
            self.eni_core(xml, eni);
            if let Some(attachment) = &eni.attachment {
                xml.node("attachment", |xml| self.attachment(xml, attachment));
            }
        });
    }

    fn subnet(&self, xml: &mut Xml, subnet: &Subnet) {
        xml.leaf("subnetId", &subnet.id);
        xml.leaf("subnetArn", format!("arn:aws:ec2:{}:{}:subnet/{}", self.region, self.account, subnet.id));
        xml.leaf("state", "available");
        xml.leaf("ownerId", &self.account);
        xml.leaf("vpcId", &self.vpc_id);
        xml.leaf("cidrBlock", subnet.cidr);
        xml.leaf("availableIpAddressCount", subnet.available);
        xml.leaf("availabilityZone", &subnet.availability_zone);
        xml.leaf("defaultForAz", false);
        xml.leaf("mapPublicIpOnLaunch", false);
        tags(xml, &subnet.tags);
    }

    fn vpc(&self, xml: &mut Xml, vpc: &VpcInfo) {
        xml.leaf("vpcId", &vpc.id);
        xml.leaf("ownerId", &self.account);
        xml.leaf("state", "available");
        if let Some(cidr) = vpc.cidrs.first() {
            xml.leaf("cidrBlock", cidr);
        }
        xml.items("cidrBlockAssociationSet", vpc.cidrs.iter().enumerate(), |xml, (index, cidr)| {
            xml.leaf("cidrBlock", cidr);
            xml.leaf("associationId", format!("vpc-cidr-assoc-{index:017x}"));
            xml.node("cidrBlockState", |xml| xml.leaf("state", "associated"));
        });
        xml.leaf("instanceTenancy", "default");
        xml.leaf("isDefault", false);
        tags(xml, &vpc.tags);
    }

    fn dns(&self, address: Ipv4Addr) -> String {
        let [a, b, c, d] = address.octets();
        format!("ip-{a}-{b}-{c}-{d}.{}.compute.internal", self.region)
    }
}

fn instance_type(xml: &mut Xml, kind: &InstanceType) {
    xml.leaf("instanceType", &kind.name);
    xml.leaf("bareMetal", kind.bare_metal());
    match kind.hypervisor {
        Hypervisor::Nitro => xml.leaf("hypervisor", "nitro"),
        Hypervisor::Xen => xml.leaf("hypervisor", "xen"),
        Hypervisor::Metal => {}
    }
    xml.node("networkInfo", |xml| {
        xml.leaf("maximumNetworkInterfaces", kind.max_enis());
        xml.leaf("maximumNetworkCards", kind.cards.len());
        xml.leaf("defaultNetworkCardIndex", 0);
        xml.items("networkCards", kind.cards.iter().enumerate(), |xml, (index, most)| {
            xml.leaf("networkCardIndex", index);
            xml.leaf("maximumNetworkInterfaces", most);
        });
        xml.leaf("ipv4AddressesPerInterface", kind.ipv4_per_eni);
    });
}

fn groups(xml: &mut Xml, groups: &[String]) {
    xml.items("groupSet", groups, |xml, group| {
        xml.leaf("groupId", group);
        xml.leaf("groupName", group);
    });
}

fn tags(xml: &mut Xml, tags: &BTreeMap<String, String>) {
    xml.items("tagSet", tags, |xml, (key, value)| {
        xml.leaf("key", key);
        xml.leaf("value", value);
    });
}
