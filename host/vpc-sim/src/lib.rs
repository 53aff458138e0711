//! A simulated VPC, for tests, the demo and the lab.
//!
//! - [`model`]: the pure model in virtual time. `Vpc::new(VpcConfig)`, then `vpc.call(now_ms, &Request) -> Outcome`;
//!   `vpc.enis(now)`, `vpc.imds_view(now, instance)`, `vpc.generation(now)`, `vpc.calls()`, faults by rule. Same
//!   configuration and same calls give the same answers.
//! - [`Sim`]: a VPC behind a lock with a real clock; the servers [`serve_api`] (the EC2 Query API, and a control surface
//!   under `/_sim/`, see the module `control` in the source) and [`serve_imds`] (instance metadata) share one. The
//!   caller owns each listener and decides when a server ends.
//! - [`instance_types`]: the limits of every EC2 instance type.
//! - [`wire`]: network namespaces that behave like the VPC's network.
//!
//! ```
//! use wipam_vpc_sim::model::{CreateNetworkInterface, FaultEffect, FaultRule, InstanceConfig, Request, Response, Vpc,
//!     VpcConfig, Wanted};
//!
//! let mut config = VpcConfig::default();
//! let subnet = config.subnets[0].id.clone();
//! config.instances.push(InstanceConfig { id: "i-1".into(), subnet: subnet.clone(), ..Default::default() });
//! let mut vpc = Vpc::new(config).unwrap();
//! vpc.add_fault(FaultRule::nth("CreateNetworkInterface", 1, FaultEffect::Partial { addresses: 2 }));
//! let create = CreateNetworkInterface { subnet_id: subnet, wanted: Wanted::addresses(3), ..Default::default() };
//! let outcome = vpc.call(1_000, &Request::CreateNetworkInterface(create));
//! let Ok(Response::Created { eni, .. }) = outcome.result else { panic!() };
//! assert_eq!(eni.secondary().len(), 2);
//! ```
#![forbid(unsafe_code)]

mod api;
mod control;
mod http;
mod imds;
pub mod instance_types;
pub mod model;
mod sim;
pub mod wire;

pub use api::serve_api;
pub use imds::{ImdsOptions, access_key_of, serve_imds};
pub use sim::{Clock, Sim};
