//! Form parameters of the Query protocol: `Name`, `List.1`, `List.1.Member`.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::model::Ec2Error;

/// The parameters of one call.
#[derive(Debug, Default)]
pub(super) struct Params {
    values: BTreeMap<String, String>,
}

impl Params {
    pub(super) fn parse(form: &str) -> Self {
        let pairs = form.split('&').filter(|pair| !pair.is_empty());
        let split = |pair: &str| match pair.split_once('=') {
            Some((name, value)) => (decode(name), decode(value)),
            None => (decode(pair), String::new()),
        };
        Self { values: pairs.map(split).collect() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A parameter that must be there.
    pub(super) fn need(&self, name: &str) -> Result<String, Ec2Error> {
        match self.get(name) {
            Some(value) if !value.is_empty() => Ok(value.to_owned()),
            _ => {
                let message = format!("The request must contain the parameter {name}");
                Err(Ec2Error::new("MissingParameter", message))
            }
        }
    }

    /// A parameter that must have a certain form if it is there.
    pub(super) fn read<T: FromStr>(&self, name: &str) -> Result<Option<T>, Ec2Error> {
        self.get(name).map(|value| read(name, value)).transpose()
    }

    /// The members of the list `name` in their order: each as the part of their names behind `name.N.`, empty for a
    /// plain value, with its value.
    pub(super) fn list(&self, name: &str) -> Vec<Params> {
        let mut members: BTreeMap<u32, Params> = BTreeMap::new();
        let start = format!("{name}.");
        for (key, value) in self.values.range(start.clone()..).take_while(|(key, _)| key.starts_with(&start)) {
            let rest = &key[start.len()..];
            let (index, member) = rest.split_once('.').unwrap_or((rest, ""));
            if let Ok(index) = index.parse() {
                members.entry(index).or_default().values.insert(member.to_owned(), value.clone());
            }
        }
        members.into_values().collect()
    }

    /// The plain values of the list `name`.
    pub(super) fn strings(&self, name: &str) -> Vec<String> {
        self.list(name).iter().filter_map(|member| member.get("").map(str::to_owned)).collect()
    }

    /// The plain values of the list `name`, each of a certain form.
    pub(super) fn read_list<T: FromStr>(&self, name: &str) -> Result<Vec<T>, Ec2Error> {
        self.strings(name).iter().map(|value| read(name, value)).collect()
    }
}

/// A value of a certain form.
pub(super) fn read<T: FromStr>(name: &str, value: &str) -> Result<T, Ec2Error> {
    value.parse().map_err(|_| {
        let message = format!("Value ({value}) for parameter {name} is invalid.");
        Ec2Error::new("InvalidParameterValue", message)
    })
}

/// Undoes the form encoding: `+` is a space, `%XX` a byte; what is neither stays.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = || u8::from_str_radix(std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?, 16).ok();
        match bytes[at] {
            b'+' => out.push(b' '),
            b'%' => match hex() {
                Some(byte) => {
                    out.push(byte);
                    at += 2;
                }
                None => out.push(b'%'),
            },
            byte => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_and_orders_lists() {
        let params = Params::parse("A=1+2%2F%zz&L.10=c&L.2=b&L.1=a&F.1.Name=n&F.1.Value.2=y&F.1.Value.1=x&E=&L.x=no");
        assert_eq!(params.get("A"), Some("1 2/%zz"));
        assert_eq!(params.strings("L"), ["a", "b", "c"]);
        let filters = params.list("F");
        assert_eq!((filters[0].get("Name"), filters[0].strings("Value")), (Some("n"), vec!["x".into(), "y".into()]));
        assert_eq!(params.need("E").unwrap_err().code, "MissingParameter");
        assert_eq!(params.read::<u32>("A").unwrap_err().code, "InvalidParameterValue");
    }
}
