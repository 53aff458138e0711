//! The actions that read. Interfaces are seen as of the describe lag; subnets, instances and types as they are.

use std::collections::BTreeMap;

use super::mutate::{no_eni, no_instance, no_subnet};
use super::request::{Describe, Ec2Error, Eni, Filter, Instance, Response, Tag, VpcInfo};
use super::vpc::{InstanceState, SubnetState, Vpc};
use crate::instance_types::{self, InstanceType};

/// What EC2 answers at most in one page.
const MAX_PAGE: usize = 1000;

type Result<T> = std::result::Result<T, Ec2Error>;

impl Vpc {
    pub(super) fn describe_enis(&self, query: &Describe) -> Result<Response> {
        check(query, &query.ids)?;
        let as_of = self.now_ms.saturating_sub(self.config.timing.describe_lag_ms);
        let see = |id: &String| self.enis.get(id).and_then(|record| record.as_of(as_of));
        let mut seen = Vec::new();
        if query.ids.is_empty() {
            // With tens of thousands of interfaces, the usual question (those of one instance) must not look at all.
            match self.one_instance(query) {
                Some(instance) => seen.extend(instance.enis.iter().filter_map(see)),
                None => seen.extend(self.enis.values().filter_map(|record| record.as_of(as_of))),
            }
        } else {
            for id in &query.ids {
                seen.push(see(id).ok_or_else(|| no_eni(id))?);
            }
            seen.sort_by(|left, right| left.id.cmp(&right.id));
            seen.dedup_by(|left, right| left.id == right.id);
        }
        let mut found = Vec::new();
        for eni in seen {
            if self.eni_matches(eni, &query.filters)? {
                found.push(eni);
            }
        }
        let (items, next_token) = page(query, found, |eni| &eni.id)?;
        Ok(Response::NetworkInterfaces { items: items.into_iter().map(|eni| Eni::clone(eni)).collect(), next_token })
    }

    fn one_instance(&self, query: &Describe) -> Option<&InstanceState> {
        let filter = query.filters.iter().find(|filter| filter.name == "attachment.instance-id")?;
        match filter.values.as_slice() {
            [id] => self.instances.get(id),
            _ => None,
        }
    }

    fn eni_matches(&self, eni: &Eni, filters: &[Filter]) -> Result<bool> {
        let plug = eni.attachment.as_ref();
        matches(filters, &eni.tags, |name| {
            Some(match name {
                "network-interface-id" => vec![eni.id.clone()],
                "subnet-id" => vec![eni.subnet_id.clone()],
                "vpc-id" => vec![self.config.vpc_id.clone()],
                "availability-zone" => vec![eni.availability_zone.clone()],
                "owner-id" => vec![self.config.account.clone()],
                "status" => vec![eni.status.as_str().to_owned()],
                "description" => vec![eni.description.clone()],
                "mac-address" => vec![eni.mac.clone()],
                "interface-type" => vec!["interface".to_owned()],
                "requester-managed" => vec!["false".to_owned()],
                "source-dest-check" => vec![eni.source_dest_check.to_string()],
                "group-id" => eni.security_groups.clone(),
                "private-ip-address" => vec![eni.primary().to_string()],
                "addresses.private-ip-address" => eni.addresses.iter().map(ToString::to_string).collect(),
                "addresses.primary" => {
                    let secondary = eni.secondary().iter().map(|_| "false".to_owned());
                    std::iter::once("true".to_owned()).chain(secondary).collect()
                }
                "ipv4-prefixes.ipv4-prefix" => eni.prefixes.iter().map(ToString::to_string).collect(),
                "association.public-ip" | "addresses.association.public-ip" => {
                    eni.public_ip.iter().map(ToString::to_string).collect()
                }
                "attachment.attachment-id" => plug.iter().map(|plug| plug.id.clone()).collect(),
                "attachment.instance-id" => plug.iter().map(|plug| plug.instance_id.clone()).collect(),
                "attachment.instance-owner-id" => plug.iter().map(|_| self.config.account.clone()).collect(),
                "attachment.device-index" => plug.iter().map(|plug| plug.device_index.to_string()).collect(),
                "attachment.status" => plug.iter().map(|plug| plug.status.as_str().to_owned()).collect(),
                "attachment.delete-on-termination" => {
                    plug.iter().map(|plug| plug.delete_on_termination.to_string()).collect()
                }
                _ => return None,
            })
        })
    }

    pub(super) fn describe_instances(&self, query: &Describe) -> Result<Response> {
        check(query, &query.ids)?;
        let mut found = Vec::new();
        for id in &query.ids {
            if !self.instances.contains_key(id) {
                return Err(no_instance(id));
            }
        }
        let named: Vec<(&String, &InstanceState)> = if query.ids.is_empty() {
            self.instances.iter().collect()
        } else {
            let ids: std::collections::BTreeSet<&String> = query.ids.iter().collect();
            ids.into_iter().filter_map(|id| self.instances.get_key_value(id)).collect()
        };
        for (id, instance) in named {
            if self.instance_matches(id, instance, &query.filters)? {
                found.push((id, instance));
            }
        }
        let (found, next_token) = page(query, found, |(id, _)| id)?;
        let as_of = self.now_ms.saturating_sub(self.config.timing.describe_lag_ms);
        let items = found.into_iter().map(|(id, instance)| self.instance_view(id, instance, as_of)).collect();
        Ok(Response::Instances { items, next_token })
    }

    fn instance_matches(&self, id: &str, instance: &InstanceState, filters: &[Filter]) -> Result<bool> {
        matches(filters, &instance.config.tags, |name| {
            Some(match name {
                "instance-id" => vec![id.to_owned()],
                "instance-type" => vec![instance.kind.name.clone()],
                "instance-state-name" => vec![state_name(instance.running).to_owned()],
                "subnet-id" | "network-interface.subnet-id" => vec![instance.config.subnet.clone()],
                "vpc-id" | "network-interface.vpc-id" => vec![self.config.vpc_id.clone()],
                "availability-zone" => vec![instance.zone.clone()],
                "private-ip-address" => vec![instance.private_ip.to_string()],
                _ => return None,
            })
        })
    }

    pub(super) fn instance_view(&self, id: &str, instance: &InstanceState, as_of: u64) -> Instance {
        let enis = self.instance_enis(id, instance, as_of);
        Instance {
            id: id.to_owned(),
            instance_type: instance.kind.name.clone(),
            running: instance.running,
            subnet_id: instance.config.subnet.clone(),
            availability_zone: instance.zone.clone(),
            private_ip: instance.private_ip,
            public_ip: instance.public_ip,
            launch_time_ms: instance.launch_time_ms,
            tags: instance.config.tags.clone(),
            enis: enis.into_iter().map(|eni| Eni::clone(eni)).collect(),
        }
    }

    pub(super) fn describe_instance_types(&self, query: &Describe) -> Result<Response> {
        check(query, &query.ids)?;
        let mut kinds: BTreeMap<&str, &InstanceType> = BTreeMap::new();
        if query.ids.is_empty() {
            for kind in instance_types::all() {
                kinds.insert(&kind.name, kind);
            }
            for kind in &self.config.instance_types {
                kinds.insert(&kind.name, kind);
            }
        } else {
            for name in &query.ids {
                let kind = self.kind(name).ok_or_else(|| {
                    let message = format!("The following supplied instance types do not exist: [{name}]");
                    Ec2Error::new("InvalidInstanceType", message)
                })?;
                kinds.insert(&kind.name, kind);
            }
        }
        let mut found = Vec::new();
        for kind in kinds.into_values() {
            let fits = matches(&query.filters, &BTreeMap::new(), |name| {
                Some(match name {
                    "instance-type" => vec![kind.name.clone()],
                    "bare-metal" => vec![kind.bare_metal().to_string()],
                    "hypervisor" if kind.bare_metal() => Vec::new(),
                    "hypervisor" => vec![if kind.prefix_capable() { "nitro" } else { "xen" }.to_owned()],
                    _ => return None,
                })
            })?;
            if fits {
                found.push(kind);
            }
        }
        let (items, next_token) = page(query, found, |kind| &kind.name)?;
        Ok(Response::InstanceTypes { items: items.into_iter().cloned().collect(), next_token })
    }

    pub(super) fn describe_subnets(&self, query: &Describe) -> Result<Response> {
        check(query, &query.ids)?;
        if let Some(id) = query.ids.iter().find(|id| !self.subnets.contains_key(*id)) {
            return Err(no_subnet(id));
        }
        let mut found = Vec::new();
        for (id, subnet) in &self.subnets {
            let named = query.ids.is_empty() || query.ids.contains(id);
            if named && self.subnet_matches(id, subnet, &query.filters)? {
                found.push((id, subnet));
            }
        }
        let (items, next_token) = page(query, found, |(id, _)| id)?;
        Ok(Response::Subnets { items: items.into_iter().map(|(_, subnet)| subnet.view()).collect(), next_token })
    }

    fn subnet_matches(&self, id: &str, subnet: &SubnetState, filters: &[Filter]) -> Result<bool> {
        matches(filters, &subnet.config.tags, |name| {
            Some(match name {
                "subnet-id" => vec![id.to_owned()],
                "vpc-id" => vec![self.config.vpc_id.clone()],
                "state" => vec!["available".to_owned()],
                "availability-zone" | "availabilityZone" => vec![subnet.zone.clone()],
                "cidr-block" | "cidr" | "cidrBlock" => vec![subnet.config.cidr.to_string()],
                "owner-id" => vec![self.config.account.clone()],
                "available-ip-address-count" => vec![subnet.addresses.free().to_string()],
                _ => return None,
            })
        })
    }

    pub(super) fn describe_vpcs(&self, query: &Describe) -> Result<Response> {
        check(query, &query.ids)?;
        if let Some(id) = query.ids.iter().find(|id| **id != self.config.vpc_id) {
            return Err(Ec2Error::new("InvalidVpcID.NotFound", format!("The vpc ID '{id}' does not exist")));
        }
        let fits = matches(&query.filters, &self.tags, |name| {
            Some(match name {
                "vpc-id" => vec![self.config.vpc_id.clone()],
                "state" => vec!["available".to_owned()],
                "owner-id" => vec![self.config.account.clone()],
                "cidr" | "cidr-block-association.cidr-block" => {
                    self.config.cidrs.iter().map(ToString::to_string).collect()
                }
                _ => return None,
            })
        })?;
        let vpc = VpcInfo { id: self.config.vpc_id.clone(), cidrs: self.config.cidrs.clone(), tags: self.tags.clone() };
        let (items, next_token) = page(query, Vec::from_iter(fits.then_some(vpc)), |vpc| &vpc.id)?;
        Ok(Response::Vpcs { items, next_token })
    }

    pub(super) fn describe_tags(&self, query: &Describe) -> Result<Response> {
        check(query, &[])?;
        let as_of = self.now_ms.saturating_sub(self.config.timing.describe_lag_ms);
        let enis = self.enis.values().filter_map(|record| record.as_of(as_of));
        let owners = enis
            .map(|eni| (&eni.id, "network-interface", &eni.tags))
            .chain(self.instances.iter().map(|(id, instance)| (id, "instance", &instance.config.tags)))
            .chain(self.subnets.iter().map(|(id, subnet)| (id, "subnet", &subnet.config.tags)))
            .chain(std::iter::once((&self.config.vpc_id, "vpc", &self.tags)));
        let mut found = Vec::new();
        for (id, kind, tags) in owners {
            for (key, value) in tags {
                let fits = matches(&query.filters, tags, |name| {
                    Some(match name {
                        "resource-id" => vec![id.clone()],
                        "resource-type" => vec![kind.to_owned()],
                        "key" => vec![key.clone()],
                        "value" => vec![value.clone()],
                        _ => return None,
                    })
                })?;
                if fits {
                    let tag =
                        Tag { resource_id: id.clone(), resource_type: kind, key: key.clone(), value: value.clone() };
                    // Paging needs one sortable name for each item; a tag has two.
                    found.push((format!("{id} {key}"), tag));
                }
            }
        }
        found.sort_by(|left, right| left.0.cmp(&right.0));
        let (items, next_token) = page(query, found, |(name, _)| name)?;
        Ok(Response::Tags { items: items.into_iter().map(|(_, tag)| tag).collect(), next_token })
    }
}

/// EC2's word for the state of an instance.
pub(crate) fn state_name(running: bool) -> &'static str {
    if running { "running" } else { "terminated" }
}

fn check(query: &Describe, ids: &[String]) -> Result<()> {
    if let Some(max) = query.max_results {
        if !ids.is_empty() {
            let message = "The parameter MaxResults cannot be used with a list of ids.";
            return Err(Ec2Error::new("InvalidParameterCombination", message));
        }
        if !(5..=MAX_PAGE as u32).contains(&max) {
            let message = format!("Value ({max}) for parameter maxResults is invalid: 5 to {MAX_PAGE} is allowed.");
            return Err(Ec2Error::new("InvalidParameterValue", message));
        }
    }
    Ok(())
}

/// Whether all filters match. `values` answers what the thing has under a name, `None` for a name that EC2 does not
/// know here.
fn matches(
    filters: &[Filter],
    tags: &BTreeMap<String, String>,
    values: impl Fn(&str) -> Option<Vec<String>>,
) -> Result<bool> {
    // Every filter is looked at, so that a wrong name is an error whatever the others say.
    let mut all = true;
    for filter in filters {
        let own = match filter.name.strip_prefix("tag:") {
            Some(key) => tags.get(key).cloned().into_iter().collect(),
            None if filter.name == "tag-key" => tags.keys().cloned().collect(),
            None => values(&filter.name).ok_or_else(|| {
                Ec2Error::new("InvalidParameterValue", format!("The filter '{}' is invalid", filter.name))
            })?,
        };
        all &= filter.values.iter().any(|pattern| own.iter().any(|value| glob(pattern, value)));
    }
    Ok(all)
}

/// Whether `pattern` with `*` (any text) and `?` (one character) matches the whole text.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Where to go on after a mismatch: behind the last star, with one more character given to it.
    let mut star = None;
    while from < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at + 1, from));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == text[from] => (at, from) = (at + 1, from + 1),
            _ => match star {
                Some((behind, given)) => {
                    star = Some((behind, given + 1));
                    (at, from) = (behind, given + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// Cuts a page out of things that are sorted by `name`. The token is the hexadecimal form of the last name.
fn page<T>(query: &Describe, found: Vec<T>, name: impl Fn(&T) -> &String) -> Result<(Vec<T>, Option<String>)> {
    let start = match &query.next_token {
        Some(token) => {
            let last = unhex(token).ok_or_else(|| Ec2Error::new("InvalidNextToken", "The token is not valid."))?;
            found.partition_point(|item| *name(item) <= last)
        }
        None => 0,
    };
    let size = query.max_results.map_or(MAX_PAGE, |max| max as usize);
    let mut rest = found.into_iter().skip(start);
    let items: Vec<T> = rest.by_ref().take(size).collect();
    let more = rest.next().is_some();
    let next_token = items.last().filter(|_| more).map(|item| hex(name(item)));
    Ok((items, next_token))
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<String> {
    let pairs = text.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> =
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, fits) in [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("a*", "abc", true),
            ("*c", "abcabc", true),
            ("*b?a*", "abcabc", true),
            ("*b?b*", "abcabc", false),
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("**a", "ba", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }
}
