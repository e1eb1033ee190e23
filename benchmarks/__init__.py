"""Measurements that are repeated by hand, and the played jobs that tests use as well."""
