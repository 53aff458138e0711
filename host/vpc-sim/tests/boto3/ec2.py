"""Drives an EC2 endpoint with boto3, whose service model says what requests and answers look like.

usage: ec2.py ENDPOINT [--moto]

Without --moto the endpoint is our API server with the VPC of tests/boto3.rs. With --moto it is a `moto_server`, a
second opinion on this script: its VPC is made first, and what moto does not do (limits, prefixes, paging, attach
states, its own error codes) is left out.
"""
import argparse
import json
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

REGION = "eu-central-1"


def code_of(call, **arguments):
    """The error code that a call ends with."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "no error"


def same(left, right):
    assert left == right, f"{left!r} is not {right!r}"


def scene(ec2, moto):
    """The ids of the VPC, a subnet and an instance."""
    if not moto:
        subnet = ec2.describe_subnets()["Subnets"][0]
        return subnet["VpcId"], subnet["SubnetId"], "i-0aaaaaaaaaaaaaaaa"
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    run = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1, InstanceType="m5.large", SubnetId=subnet)
    return vpc, subnet, run["Instances"][0]["InstanceId"]


def reads(ec2, vpc, subnet, instance, moto):
    found = ec2.describe_vpcs(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Vpcs"]
    same([entry["CidrBlock"] for entry in found], ["10.0.0.0/16"])
    found = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    same([entry["CidrBlock"] for entry in found if entry["SubnetId"] == subnet], ["10.0.0.0/24"])
    kind = ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"][0]
    net = kind["NetworkInfo"]
    same((net["MaximumNetworkInterfaces"], net["Ipv4AddressesPerInterface"]), (3, 10))
    same(net["NetworkCards"][0]["MaximumNetworkInterfaces"], 3)
    same((kind["Hypervisor"], kind["BareMetal"]), ("nitro", False))
    found = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    same((found["State"]["Name"], found["InstanceType"], found["SubnetId"]), ("running", "m5.large", subnet))
    primary = found["NetworkInterfaces"][0]
    same(primary["Attachment"]["DeviceIndex"], 0)
    same(primary["PrivateIpAddress"], found["PrivateIpAddress"])
    same(code_of(ec2.describe_instances, InstanceIds=["i-0123456789abcdef0"]), "InvalidInstanceID.NotFound")
    same(code_of(ec2.describe_subnets, SubnetIds=["subnet-0123456789abcdef0"]), "InvalidSubnetID.NotFound")
    if not moto:
        same(found["PublicIpAddress"], primary["Association"]["PublicIp"])
        kinds = ec2.get_paginator("describe_instance_types").paginate(PaginationConfig={"PageSize": 100})
        assert len([kind for page in kinds for kind in page["InstanceTypes"]]) >= 1395
        many = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])["InstanceTypes"][0]["NetworkInfo"]
        same([card["MaximumNetworkInterfaces"] for card in many["NetworkCards"]], [15] * 4)


def life(ec2, vpc, subnet, instance, moto):
    """An interface from creation to deletion."""
    same(code_of(ec2.describe_network_interfaces, NetworkInterfaceIds=["eni-0123456789abcdef0"]),
         "InvalidNetworkInterfaceID.NotFound")
    same(code_of(ec2.create_network_interface, SubnetId=subnet, DryRun=True), "DryRunOperation")
    before = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailableIpAddressCount"]
    made = ec2.create_network_interface(
        SubnetId=subnet, Description="aws-K8S-<&> test", SecondaryPrivateIpAddressCount=2,
        TagSpecifications=[{"ResourceType": "network-interface", "Tags": [{"Key": "owner", "Value": "a b+c&d"}]}],
    )["NetworkInterface"]
    eni = made["NetworkInterfaceId"]
    same(made["VpcId"], vpc)
    found = ec2.describe_network_interfaces(Filters=[{"Name": "tag:owner", "Values": ["a b+c&d"]}])["NetworkInterfaces"]
    same([entry["NetworkInterfaceId"] for entry in found], [eni])
    same((found[0]["Description"], found[0]["Status"]), ("aws-K8S-<&> test", "available"))
    addresses = found[0]["PrivateIpAddresses"]
    same([entry["Primary"] for entry in addresses], [True, False, False])
    same(addresses[0]["PrivateIpAddress"], found[0]["PrivateIpAddress"])
    if not moto:
        after = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailableIpAddressCount"]
        same(before - after, 3)

    attachment = ec2.attach_network_interface(InstanceId=instance, NetworkInterfaceId=eni, DeviceIndex=1)["AttachmentId"]
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=[eni])["NetworkInterfaces"][0]
    same((found["Status"], found["Attachment"]["AttachmentId"]), ("in-use", attachment))
    same((found["Attachment"]["InstanceId"], found["Attachment"]["DeviceIndex"]), (instance, 1))
    of_instance = [{"Name": "attachment.instance-id", "Values": [instance]}]
    same(len(ec2.describe_network_interfaces(Filters=of_instance)["NetworkInterfaces"]), 2)

    ec2.assign_private_ip_addresses(NetworkInterfaceId=eni, SecondaryPrivateIpAddressCount=3)
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=[eni])["NetworkInterfaces"][0]["PrivateIpAddresses"]
    same(len(found), 6)
    ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni, PrivateIpAddresses=[found[1]["PrivateIpAddress"]])
    left = ec2.describe_network_interfaces(NetworkInterfaceIds=[eni])["NetworkInterfaces"][0]["PrivateIpAddresses"]
    same(len(left), 5)
    assert found[1] not in left

    ec2.create_tags(Resources=[eni], Tags=[{"Key": "more", "Value": ""}])
    tags = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [eni]}])["Tags"]
    same({tag["Key"]: tag["Value"] for tag in tags}, {"owner": "a b+c&d", "more": ""})
    same({tag["ResourceType"] for tag in tags}, {"network-interface"})
    ec2.delete_tags(Resources=[eni], Tags=[{"Key": "more"}])
    same(len(ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [eni]}])["Tags"]), 1)

    if not moto:
        ours_only(ec2, subnet, instance, eni, attachment)
    ec2.detach_network_interface(AttachmentId=attachment)
    same(ec2.describe_network_interfaces(NetworkInterfaceIds=[eni])["NetworkInterfaces"][0]["Status"], "available")
    same(code_of(ec2.detach_network_interface, AttachmentId="eni-attach-0123456789abcdef0"),
         "InvalidAttachmentID.NotFound")
    ec2.delete_network_interface(NetworkInterfaceId=eni)
    same(code_of(ec2.delete_network_interface, NetworkInterfaceId=eni), "InvalidNetworkInterfaceID.NotFound")


def ours_only(ec2, subnet, instance, eni, attachment):
    """What moto does not do."""
    change = {"AttachmentId": attachment, "DeleteOnTermination": True}
    ec2.modify_network_interface_attribute(NetworkInterfaceId=eni, Attachment=change)
    ec2.modify_network_interface_attribute(NetworkInterfaceId=eni, Groups=["sg-1", "sg-2"])
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=[eni])["NetworkInterfaces"][0]
    assert found["Attachment"]["DeleteOnTermination"]
    same([group["GroupId"] for group in found["Groups"]], ["sg-1", "sg-2"])
    same(code_of(ec2.assign_private_ip_addresses, NetworkInterfaceId=eni, SecondaryPrivateIpAddressCount=9),
         "PrivateIpAddressLimitExceeded")
    same(code_of(ec2.delete_network_interface, NetworkInterfaceId=eni), "InvalidParameterValue")
    same(code_of(ec2.attach_network_interface, InstanceId=instance, NetworkInterfaceId=eni, DeviceIndex=2),
         "InvalidNetworkInterface.InUse")

    given = ec2.assign_private_ip_addresses(NetworkInterfaceId=eni, Ipv4PrefixCount=2)
    prefixes = [entry["Ipv4Prefix"] for entry in given["AssignedIpv4Prefixes"]]
    assert len(prefixes) == 2 and all(prefix.endswith("/28") for prefix in prefixes)
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=[eni])["NetworkInterfaces"][0]
    same([entry["Ipv4Prefix"] for entry in found["Ipv4Prefixes"]], prefixes)
    ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni, Ipv4Prefixes=prefixes)
    named = ec2.assign_private_ip_addresses(NetworkInterfaceId=eni, PrivateIpAddresses=["10.0.0.200"])
    same([entry["PrivateIpAddress"] for entry in named["AssignedPrivateIpAddresses"]], ["10.0.0.200"])

    token = {"SubnetId": subnet, "ClientToken": "one-and-the-same", "Ipv4PrefixCount": 1}
    first = ec2.create_network_interface(**token)
    again = ec2.create_network_interface(**token)
    same(first["NetworkInterface"]["NetworkInterfaceId"], again["NetworkInterface"]["NetworkInterfaceId"])
    same((first["ClientToken"], first["NetworkInterface"]["Status"]), ("one-and-the-same", "pending"))
    same(code_of(ec2.create_network_interface, **dict(token, Ipv4PrefixCount=2)), "IdempotentParameterMismatch")
    second = first["NetworkInterface"]["NetworkInterfaceId"]
    explicit = ec2.create_network_interface(SubnetId=subnet, PrivateIpAddresses=[
        {"PrivateIpAddress": "10.0.0.210", "Primary": True}, {"PrivateIpAddress": "10.0.0.211", "Primary": False},
    ])["NetworkInterface"]
    same([entry["PrivateIpAddress"] for entry in explicit["PrivateIpAddresses"]], ["10.0.0.210", "10.0.0.211"])
    third = explicit["NetworkInterfaceId"]
    ec2.attach_network_interface(InstanceId=instance, NetworkInterfaceId=second, DeviceIndex=2)
    same(code_of(ec2.attach_network_interface, InstanceId=instance, NetworkInterfaceId=third, DeviceIndex=3),
         "AttachmentLimitExceeded")
    more = [ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"] for _ in range(6)]
    pages = list(ec2.get_paginator("describe_network_interfaces").paginate(
        Filters=[{"Name": "status", "Values": ["available"]}], PaginationConfig={"PageSize": 5}))
    same([len(page["NetworkInterfaces"]) for page in pages], [5, 2])
    for extra in more + [third]:
        ec2.delete_network_interface(NetworkInterfaceId=extra)


def faults(ec2, endpoint, subnet):
    """Errors by rule, and a reply that is lost after the change."""

    def control(method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{endpoint}/_sim/{path}", data=data, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    for code, status in [("RequestLimitExceeded", 503), ("UnauthorizedOperation", 403), ("InternalError", 500)]:
        control("POST", "faults", {"action": "CreateNetworkInterface", "effect": {"kind": "error", "code": code}})
        try:
            ec2.create_network_interface(SubnetId=subnet)
            raise AssertionError("the call should fail")
        except ClientError as error:
            same(error.response["Error"]["Code"], code)
            same(error.response["ResponseMetadata"]["HTTPStatusCode"], status)
        control("DELETE", "faults")
    # boto3 repeats a call whose connection broke; with its own client token that must not make two interfaces.
    retrying = client(endpoint, attempts=3)
    count = len(ec2.describe_network_interfaces()["NetworkInterfaces"])
    control("POST", "faults", [{"action": "CreateNetworkInterface", "count": 1, "effect": {"kind": "lost-reply"}}])
    made = retrying.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    same(len(ec2.describe_network_interfaces()["NetworkInterfaces"]), count + 1)
    same(control("GET", "calls")["CreateNetworkInterface"]["lost-replies"], 1)
    ec2.delete_network_interface(NetworkInterfaceId=made)
    control("DELETE", "faults")


def client(endpoint, attempts=1):
    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, read_timeout=20, connect_timeout=5)
    return boto3.client("ec2", region_name=REGION, endpoint_url=endpoint, config=config,
                        aws_access_key_id="AKIATEST", aws_secret_access_key="none")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("endpoint")
    arguments.add_argument("--moto", action="store_true")
    options = arguments.parse_args()
    ec2 = client(options.endpoint)
    vpc, subnet, instance = scene(ec2, options.moto)
    reads(ec2, vpc, subnet, instance, options.moto)
    life(ec2, vpc, subnet, instance, options.moto)
    if not options.moto:
        faults(ec2, options.endpoint, subnet)
    print("ok")


if __name__ == "__main__":
    main()
