"""What we write to the cluster; sees nothing but `gpudoctor.report`."""
