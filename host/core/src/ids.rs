//! Small stable numbers for things that have long names.

/// FNV-1a, 64 bit: stable across versions and machines, since it is part of the record format.
pub fn fnv64(parts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // The separator keeps ("ab","c") and ("a","bc") apart; no name holds a NUL.
        for byte in part.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// Key of a pod: a stable hash of namespace and name, never 0 (0 means "none" in the columns).
pub fn pod_key(namespace: &str, name: &str) -> u64 {
    fnv64(&[namespace.as_bytes(), name.as_bytes()]).max(1)
}

/// Opaque number of a sandbox, so that container ids never reach a policy or a record.
///
/// An id made by [`opaque_container`] stands for its own number, so that a replay shows policies what they saw.
pub fn sandbox_number(network: &str, container_id: &str) -> u64 {
    if let Some(number) = container_id.strip_prefix('#').and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
        return number;
    }
    fnv64(&[network.as_bytes(), container_id.as_bytes()])
}

/// A container id that is only a number, for records: [`sandbox_number`] of it is that number again.
pub fn opaque_container(number: u64) -> String {
    format!("#{number:016x}")
}
