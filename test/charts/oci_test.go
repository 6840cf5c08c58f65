package charts_test

// chartLayer is the media type of a chart in a registry.
const chartLayer = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
